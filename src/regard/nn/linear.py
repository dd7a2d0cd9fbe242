"""Linear layers that may hold several stacked matrices."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """x Wᵀ + b. Several ``outputs`` are matrices stacked in ``weight``; Muon and ``init`` treat each of them alone."""

    def __init__(self, inputs: int, *outputs: int, bias: bool = True):
        super().__init__(inputs, sum(outputs), bias=bias)
        self.parts = outputs  # the row counts of the matrices

    @torch.no_grad()
    def init(self, matrix: Callable[[Tensor], object]) -> None:
        """Initialize each stacked matrix in place with ``matrix``, and the bias with 0."""
        for part in self.weight.split(self.parts):
            matrix(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
