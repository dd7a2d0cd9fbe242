"""Masks given by a tensor: labels, a graph, a layout of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.masks.mask import Mask
from regard.attention.masks.summary import BlockBounds, BlockVerdict
from regard.attention.slots import Pairs


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
