"""Masks given by a tensor: labels, a graph, a layout of blocks; or by labels that are computed from the tokens.

A model binds the latter to its tokens in each forward pass (``Mask.bind``): a label is computed for every token, and
tokens with equal labels see each other. While decoding, a cache holds the tokens so far.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.masks.mask import BlockBounds, BlockVerdict, Mask
from regard.attention.slots import Pairs
from regard.errors import UserError


@dataclass(frozen=True, eq=False)
class Same(Mask):
    """Pairs whose labels are equal; ``labels[order]``, or ``labels[row, order]`` when they differ by row."""

    labels: Tensor  # [N] or [B, N]

    @property
    def rows(self) -> int:
        return self.labels.shape[0] if self.labels.ndim == 2 else 1

    def to(self, device: torch.device) -> Mask:
        return self if self.labels.device == device else replace(self, labels=self.labels.to(device))

    def allows(self, pairs: Pairs) -> Tensor:
        if self.labels.ndim == 1:
            return self.labels[pairs.q.order] == self.labels[pairs.k.order]
        return self.labels[pairs.batch, pairs.q.order] == self.labels[pairs.batch, pairs.k.order]


@dataclass(frozen=True, eq=False)
class Edges(Mask):
    """A graph: ``adjacency[q.order, k.order]``, or ``adjacency[row, ...]`` when it differs by row."""

    adjacency: Tensor  # [N, N] or [B, N, N], bool

    @property
    def rows(self) -> int:
        return self.adjacency.shape[0] if self.adjacency.ndim == 3 else 1

    def to(self, device: torch.device) -> Mask:
        return self if self.adjacency.device == device else replace(self, adjacency=self.adjacency.to(device))

    def allows(self, pairs: Pairs) -> Tensor:
        if self.adjacency.ndim == 2:
            return self.adjacency[pairs.q.order, pairs.k.order]
        return self.adjacency[pairs.batch, pairs.q.order, pairs.k.order]


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """A layout of square blocks: ``layout[q.order // size, k.order // size]``."""

    layout: Tensor  # [blocks, blocks], bool
    size: int

    def to(self, device: torch.device) -> Mask:
        return self if self.layout.device == device else replace(self, layout=self.layout.to(device))

    def allows(self, pairs: Pairs) -> Tensor:
        return self.layout[pairs.q.order // self.size, pairs.k.order // self.size]

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        """By sums over rectangles of the layout, four numbers each (Crow 1984)."""
        if self.layout.device != bounds.q_low.device:  # a plan made on the host does not wait for a GPU
            return super().verdict(bounds)
        total = F.pad(self.layout.long().cumsum(0).cumsum(1), (1, 0, 1, 0))
        top, bottom = bounds.q_low // self.size, bounds.q_high // self.size + 1
        left, right = bounds.k_low // self.size, bounds.k_high // self.size + 1
        allowed = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
        return BlockVerdict(allowed > 0, allowed == (bottom - top) * (right - left))


class TokenMask(Mask):
    """Base class: a frozen dataclass with ``labels``."""

    needs_tokens = True

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        """Tokens [B, N] to labels [B, N], each from the tokens of its document up to its own.

        ``first`` [B|1, N] is the index at which each token's document begins.
        """
        raise NotImplementedError

    def bind(self, tokens: Tensor, phases: Tensor | None = None) -> Mask:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        return Same(self.labels(tokens, torch.zeros_like(index)[None] if phases is None else index - phases))

    def allows(self, pairs: Pairs) -> Tensor:
        raise UserError(f"{self} follows from the tokens and needs a model that reads them, such as gpt")


@dataclass(frozen=True)
class Spans(TokenMask):
    """Tokens of the same span, where a span ends with each token whose id is in ``ends``: a sentence, a document.

    >>> Spans((9,)).bind(torch.tensor([[1, 9, 2, 3, 9, 4]])).labels.tolist()
    [[0, 0, 1, 1, 1, 2]]
    """

    ends: tuple[int, ...]

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        end = _among(tokens, self.ends).long()
        return end.cumsum(1) - end


@dataclass(frozen=True)
class Tagged(TokenMask):
    """Tokens after the same tag: the latest token whose id is in ``tags``, such as the name of a speaker.

    >>> Tagged((7, 8)).bind(torch.tensor([[1, 7, 2, 8, 3, 7, 4]])).labels.tolist()
    [[-1, 7, 7, 8, 8, 7, 7]]
    """

    tags: tuple[int, ...]

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        latest = torch.where(_among(tokens, self.tags), index, -1).cummax(1).values
        return torch.where(latest < first, -1, tokens.gather(1, latest.clamp(min=0)))


def _among(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    return torch.isin(tokens, torch.tensor(ids, dtype=tokens.dtype, device=tokens.device))
