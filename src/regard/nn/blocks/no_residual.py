"""A block without residual paths: what deep networks were before them, kept for comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.attention import KVCache
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttentionContext


class NoResidual(Block):
    """f(norm(x)), nothing added: a gradient has to pass through every layer (He et al. 2016 show what that costs)."""

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: KVCache | None = None,
        cross_context: CrossAttentionContext | None = None,
    ) -> Tensor:
        x = self.drop(self.attention(self.norm_attention(x), context, memory))
        if self.cross is not None and self.norm_cross is not None and cross_context is not None:
            x = self.drop(self.cross(self.norm_cross(x), cross_context))
        return self.drop(self.feedforward(self.norm_feedforward(x)))


@dataclass(frozen=True)
class NoResidualConfig(BlockConfig, kind="bare"):
    """No residual paths; norms before each layer."""

    def build(self, *parts, **named) -> Block:
        return NoResidual(*parts, **named)
