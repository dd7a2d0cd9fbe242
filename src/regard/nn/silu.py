"""The feed-forward network with SiLU and no gate, as Marian's translation models have it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

from regard.nn.feedforward import FeedForward, FeedForwardConfig


@dataclass(frozen=True)
class SiLUConfig(FeedForwardConfig, kind="silu"):
    """x σ(x), also called swish."""

    def build(self, width: int, *, bias: bool) -> nn.Module:
        return FeedForward(width, round(self.ratio * width), F.silu, bias=bias)
