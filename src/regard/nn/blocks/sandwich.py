"""The sandwich: a norm before and after each branch (Ding et al. 2021, CogView, sec. 2.4; Gemma 2, 2024, sec. 2)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttentionContext
from regard.nn.norm import LayerNorm, RMSNorm


class Sandwich(Block):
    """x + norm'(f(norm(x))): the second norm fixes the scale of what a branch adds."""

    def __init__(self, *parts: Any, **named: Any):
        super().__init__(*parts, **named)
        self.after_attention = deepcopy(self.norm_attention)  # norms of the same kind
        self.after_cross = nn.Identity() if self.norm_cross is None else deepcopy(self.norm_cross)
        self.after_feedforward = deepcopy(self.norm_feedforward)

    def forward(
        self, x: Tensor, context: AttentionContext, cache: Any = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        x = x + self.drop(self.after_attention(self.attention(self.norm_attention(x), context, cache)))
        if self.cross is not None and self.norm_cross is not None and cross is not None:
            x = x + self.drop(self.after_cross(self.cross(self.norm_cross(x), cross)))
        return x + self.drop(self.after_feedforward(self.feedforward(self.norm_feedforward(x))))

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Scale the gain of the second norm: it would undo any scale of the matrix before it."""
        if not isinstance(self.after_attention, LayerNorm | RMSNorm):
            super().scale_residual(scale)
        for norm in (self.after_attention, self.after_cross, self.after_feedforward):
            if isinstance(norm, LayerNorm | RMSNorm):
                norm.gain.mul_(scale)


@dataclass(frozen=True)
class SandwichConfig(BlockConfig, kind="sandwich"):
    """Norms before and after each branch."""

    def build(self, *parts, **named) -> Block:
        return Sandwich(*parts, **named)
