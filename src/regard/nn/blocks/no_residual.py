"""A block without residual paths, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttentionContext


class NoResidual(Block):
    """f(norm(x)): a gradient passes through every layer (He et al. 2016 show what that costs)."""

    def forward(
        self, x: Tensor, context: AttentionContext, cache: Any = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        x = self.drop(self.attention(self.norm_attention(x), context, cache))
        if self.cross is not None and self.norm_cross is not None and cross is not None:
            x = self.drop(self.cross(self.norm_cross(x), cross))
        return self.drop(self.feedforward(self.norm_feedforward(x)))


@dataclass(frozen=True)
class NoResidualConfig(BlockConfig, kind="bare"):
    """No residual paths; norms before each layer."""

    def build(self, *parts, **named) -> Block:
        return NoResidual(*parts, **named)
