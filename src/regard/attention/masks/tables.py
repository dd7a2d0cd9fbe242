"""Masks given by a tensor: labels, a graph, a layout of blocks; by a function; or by labels computed from the tokens.

A model binds the last to its tokens in each forward pass (``Mask.bind``): a label is computed for every token, and
tokens with equal labels see each other. While decoding, a cache holds the tokens so far.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.masks.mask import BlockBounds, BlockVerdict, Mask
from regard.attention.slots import Pairs, table_at
from regard.errors import UserError


@dataclass(frozen=True, eq=False)
class Same(Mask):
    """Pairs whose labels are equal; ``labels[order]``, or ``labels[row, order]`` when they differ by row."""

    labels: Tensor  # [N] or [B, N]

    @property
    def rows(self) -> int:
        return self.labels.shape[0] if self.labels.ndim == 2 else 1

    @property
    def table_length(self) -> int:
        return self.labels.shape[-1]

    def to(self, device: torch.device) -> Mask:
        return self if self.labels.device == device else replace(self, labels=self.labels.to(device))

    def allows(self, pairs: Pairs) -> Tensor:
        if self.labels.ndim == 1:
            return self.labels[pairs.q.order] == self.labels[pairs.k.order]
        return self.labels[pairs.batch, pairs.q.order] == self.labels[pairs.batch, pairs.k.order]


@dataclass(frozen=True, eq=False)
class Edges(Mask):
    """A graph: ``adjacency[q.order, k.order]``, or ``adjacency[row, ...]``, or ``adjacency[row, head, ...]``."""

    adjacency: Tensor  # [N, N], [B, N, N] or [B|1, H|1, N, N], bool

    @property
    def rows(self) -> int:
        return self.adjacency.shape[0] if self.adjacency.ndim > 2 else 1

    @property
    def distinct_heads(self) -> int:
        return self.adjacency.shape[1] if self.adjacency.ndim == 4 else 1

    @property
    def table_length(self) -> int:
        return min(self.adjacency.shape[-2:])

    def to(self, device: torch.device) -> Mask:
        return self if self.adjacency.device == device else replace(self, adjacency=self.adjacency.to(device))

    def allows(self, pairs: Pairs) -> Tensor:
        if self.adjacency.ndim == 2:
            return self.adjacency[pairs.q.order, pairs.k.order]
        return table_at(self.adjacency if self.adjacency.ndim == 4 else self.adjacency[:, None], pairs)


@dataclass(frozen=True, eq=False)
class Rule(Mask):
    """The pairs for which a function returns True: one of (q.order, k.order), or of (row, head, q.order, k.order)."""

    function: Callable[..., Tensor]
    of_pair: bool = True
    by_row: int = 1  # rows of the batch that it distinguishes
    by_head: int = 1

    @property
    def name(self) -> str:
        return self.function.__name__ if isinstance(self.function, FunctionType) else type(self.function).__name__

    @property
    def rows(self) -> int:
        return self.by_row

    @property
    def distinct_heads(self) -> int:
        return self.by_head

    def allows(self, pairs: Pairs) -> Tensor:
        place = (pairs.q.order, pairs.k.order)
        return self.function(*place) if self.of_pair else self.function(pairs.batch, pairs.head, *place)


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """A layout of square blocks: ``layout[q.order // size, k.order // size]``."""

    layout: Tensor  # [blocks, blocks], bool
    size: int

    @property
    def table_length(self) -> int:
        return self.layout.shape[0] * self.size

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
