"""A block without residual paths: what deep networks were before them, kept for comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.attend import KeyValues
from regard.layers.attention import Scene
from regard.layers.block import Block, BlockConfig
from regard.layers.cross import Sight


class Bare(Block):
    """f(norm(x)), nothing added: a gradient has to pass through every layer (He et al. 2016 show what that costs)."""

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None, sight: Sight | None = None) -> Tensor:
        x = self.drop(self.attention(self.norm_attention(x), scene, memory))
        if self.cross is not None and self.norm_cross is not None and sight is not None:
            x = self.drop(self.cross(self.norm_cross(x), sight))
        return self.drop(self.feedforward(self.norm_feedforward(x)))


@dataclass(frozen=True)
class BareConfig(BlockConfig, kind="bare"):
    """No residual paths; norms before each layer."""

    def build(self, *parts, **named) -> Block:
        return Bare(*parts, **named)
