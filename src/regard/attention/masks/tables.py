"""Masks that somebody wrote down: labels, a graph, a layout of blocks, each a tensor that is looked up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from regard.attention.masks.mask import Mask
from regard.attention.masks.summary import Tile, Verdict
from regard.attention.slots import Pairs


@dataclass(frozen=True, eq=False)
class Same(Mask):
    """Pairs whose labels are equal; ``labels[order]``, or ``labels[row, order]`` when they differ by row."""

    labels: Tensor  # [N] or [B, N]

    @property
    def rows(self) -> int:
        return self.labels.shape[0] if self.labels.ndim == 2 else 1

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

    def allows(self, pairs: Pairs) -> Tensor:
        if self.adjacency.ndim == 2:
            return self.adjacency[pairs.q.order, pairs.k.order]
        return self.adjacency[pairs.batch, pairs.q.order, pairs.k.order]


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """A layout of square blocks: ``layout[q.order // size, k.order // size]``."""

    layout: Tensor  # [blocks, blocks], bool
    size: int

    def allows(self, pairs: Pairs) -> Tensor:
        return self.layout[pairs.q.order // self.size, pairs.k.order // self.size]

    def verdict(self, tile: Tile) -> Verdict:
        """By sums over rectangles of the layout, four numbers each (Crow 1984)."""
        if self.layout.device != tile.q_low.device:  # a layout on a GPU tells a plan made on the host nothing
            return super().verdict(tile)
        total = F.pad(self.layout.long().cumsum(0).cumsum(1), (1, 0, 1, 0))
        top, bottom = tile.q_low // self.size, tile.q_high // self.size + 1
        left, right = tile.k_low // self.size, tile.k_high // self.size + 1
        found = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
        return Verdict(found > 0, found == (bottom - top) * (right - left))
