"""A block: pre-norm with a learned gain per channel on each residual branch (LayerScale, Touvron et al. 2021, eq. 4).

regard train --with block.py --model.block layer-scale --model.block.gain 0.1
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import option
from regard.nn import AttentionContext, Block, BlockConfig


class LayerScale(Block):
    """x + gain * f(norm(x))."""

    def __init__(self, gain: float, width: int, *parts: Any, **named: Any):
        super().__init__(*parts, **named)
        self.gain_attention, self.gain_feedforward = (nn.Parameter(torch.full((width,), gain)) for _ in range(2))

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        assert self.cross is None, "this block has no cross-attention"
        x = x + self.drop(self.gain_attention * self.attention(self.norm_attention(x), context))
        return x + self.drop(self.gain_feedforward * self.feedforward(self.norm_feedforward(x)))


@dataclass(frozen=True)
class LayerScaleConfig(BlockConfig, kind="layer-scale"):
    """Pre-norm with a gain per channel on each branch."""

    gain: float = option(0.1, "initial gain")

    def build(self, *parts: Any, **named: Any) -> Block:
        width = next(parameter.shape[0] for parameter in parts[2].parameters())  # of the first norm
        return LayerScale(self.gain, width, *parts, **named)
