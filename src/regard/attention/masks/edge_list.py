"""A sparse graph as a mask: a sorted list of its pairs, where ``Edges`` holds the whole table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.masks.mask import And, Mask
from regard.attention.slots import Pairs


@dataclass(frozen=True, eq=False)
class EdgeList(Mask):
    """The pairs of a list, by order; the backend `edges` reads nothing else, so its cost grows with the edges.

    >>> mask = EdgeList.of(torch.tensor([[[0, 1], [2, 0], [-1, -1]]]), 3)
    >>> mask.codes.tolist()
    [1, 6]
    """

    codes: Tensor  # [E] int64, sorted: (row · length + query) · length + key
    length: int  # of a row, in tokens
    batch: int  # rows that it distinguishes

    @classmethod
    def of(cls, edges: Tensor, length: int) -> EdgeList:
        """From pairs (query, key) [B, E, 2]; negative numbers are padding, and repetitions count once."""
        row = torch.arange(edges.shape[0], device=edges.device)[:, None]
        codes = (row * length + edges[..., 0]) * length + edges[..., 1]
        return cls(codes[(edges >= 0).all(-1)].unique(), length, edges.shape[0])

    @property
    def rows(self) -> int:
        return self.batch

    @property
    def table_length(self) -> int:
        return self.length

    def to(self, device: torch.device) -> Mask:
        return self if self.codes.device == device else replace(self, codes=self.codes.to(device))

    def positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """The row, the query and the key of each pair, [E] each, sorted."""
        return self.codes // self.length**2, self.codes // self.length % self.length, self.codes % self.length

    def find(self, pairs: Pairs) -> Tensor:
        """The number of each pair in the list; -1: it is not there."""
        row = pairs.batch if self.batch > 1 else torch.zeros_like(pairs.batch)
        codes = (row * self.length + pairs.q.order) * self.length + pairs.k.order
        if not len(self.codes):
            return torch.full_like(codes, -1)
        place = torch.searchsorted(self.codes, codes).clamp(max=len(self.codes) - 1)
        return torch.where(self.codes[place] == codes, place, -1)

    def allows(self, pairs: Pairs) -> Tensor:
        return self.find(pairs) >= 0


def edge_list(mask: Mask) -> EdgeList | None:
    """A list that contains every pair that the mask allows; None: it has none."""
    if isinstance(mask, And):
        return edge_list(mask.left) or edge_list(mask.right)
    return mask if isinstance(mask, EdgeList) else None
