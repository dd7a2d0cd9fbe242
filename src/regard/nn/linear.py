"""Linear layers that may hold several stacked matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """x Wᵀ + b. ``parts``: the row counts of the matrices stacked in ``weight``; Muon and ``init`` treat each alone."""

    parts: tuple[int, ...] = ()

    @torch.no_grad()
    def init(self, matrix: Callable[[Tensor], object]) -> None:
        """Initialize each stacked matrix in place with ``matrix``, and the bias with 0."""
        for part in self.weight.split(list(self.parts) or len(self.weight)):
            matrix(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
