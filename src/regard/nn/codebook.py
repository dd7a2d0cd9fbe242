"""Vector quantization: a vector becomes the nearest of a learned set (van den Oord et al. 2017, VQ-VAE, sec. 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties

NEAR = 0.01  # an input this near to its code, as a share of the variance of all, needs no other


class Quantized(NamedTuple):
    """Vectors after quantization."""

    codes: Tensor  # [...] int64
    vectors: Tensor  # [..., D], those of the codes; gradients pass straight through to the vectors before
    loss: Tensor  # [...], of the codebook and of the commitment


class Codebook(nn.Module, ModuleProperties):
    """A table of vectors, each of which stands for the inputs that are nearest to it."""

    idle: Tensor
    discontinuous, self_updating = True, True

    def __init__(self, codes: int, width: int, *, commitment: float = 0.25, patience: int = 20):
        super().__init__()
        self.commitment, self.patience = commitment, patience
        self.table = nn.Embedding(codes, width)
        self.register_buffer("idle", torch.zeros(codes, dtype=torch.long))  # training passes since a code was used

    def forward(self, x: Tensor) -> Quantized:
        """Vectors [..., D] to the nearest codes; equations 1 to 3.

        The loss of a vector is |sg(x) - e|² + β |x - sg(e)|², as means over D; sg stops gradients.
        """
        codes = self.nearest(x)
        if self.training:
            self._revive(x.detach().flatten(0, -2), codes.flatten())
        chosen = self.table(codes)
        loss = (x.detach() - chosen).square().mean(-1) + self.commitment * (x - chosen.detach()).square().mean(-1)
        return Quantized(codes, x + (chosen - x).detach(), loss)

    def nearest(self, x: Tensor) -> Tensor:
        """The code [...] of the nearest vector."""
        table = self.table.weight
        return (table.square().sum(-1) - 2 * x @ table.T).argmin(-1)

    @torch.no_grad()
    def _revive(self, x: Tensor, codes: Tensor) -> None:
        """Move codes that were not used for ``patience`` passes to inputs [R, D], far ones more likely.

        They are drawn by the squared distance from their code, as by k-means++; inputs that have a code of their own
        stay with it.
        """
        used = torch.bincount(codes, minlength=len(self.idle)) > 0
        self.idle.add_(1).masked_fill_(used, 0)
        far = (x - self.table.weight[codes]).square().sum(-1).float()
        far = far * (far > NEAR * (x - x.mean(0)).square().sum(-1).mean())
        dead = (self.idle >= self.patience).nonzero()[:, 0][: int(far.count_nonzero())]
        if len(dead):
            self.table.weight[dead] = x[torch.multinomial(far, len(dead))].to(self.table.weight)
            self.idle[dead] = 0
