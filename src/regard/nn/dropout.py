"""Dropout (Srivastava et al. 2014), with cheap random numbers on a CPU.

PyTorch draws one number of its own for every element there, on one core: a tenth of a small model's step. Sixteen bits
say as much, and one draw of the generator has sixty-four.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS = 2**16  # a share of dropped elements is a multiple of one over this


class Dropout(nn.Dropout):
    """Zeros a share ``p`` of the elements while training, and makes up for it with the others."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        dropped = min(round(self.p * STEPS), STEPS - 1)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64, device=input.device)
        draws.random_(-(2**63), None)  # all 64 bits
        numbers = draws.view(torch.int16)[: input.numel()].view(input.shape)
        kept = numbers >= dropped - STEPS // 2
        return input * kept.to(input.dtype).mul_(STEPS / (STEPS - dropped))
