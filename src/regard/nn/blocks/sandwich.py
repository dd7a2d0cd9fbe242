"""The sandwich: a norm before and after each branch (Ding et al. 2021, CogView, sec. 2.4; Gemma 2, 2024, sec. 2)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttentionContext


class Sandwich(Block):
    """x + norm'(f(norm(x))): what a branch adds has a scale of its own, however large the products in it grow.

    So a branch ends in the gain of its second norm: that is what starts at zero or small, not the matrix before it, of
    which the norm would take every scale away.
    """

    def __init__(self, *parts: Any, **named: Any):
        super().__init__(*parts, **named)
        self.after_attention = deepcopy(self.norm_attention)  # norms of the same kind
        self.after_cross = deepcopy(self.norm_cross)
        self.after_feedforward = deepcopy(self.norm_feedforward)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: Any = None,
        cross_context: CrossAttentionContext | None = None,
    ) -> Tensor:
        x = x + self.drop(self.after_attention(self.attention(self.norm_attention(x), context, memory)))
        if (
            self.cross is not None
            and self.norm_cross is not None
            and self.after_cross is not None
            and cross_context is not None
        ):
            x = x + self.drop(self.after_cross(self.cross(self.norm_cross(x), cross_context)))
        return x + self.drop(self.after_feedforward(self.feedforward(self.norm_feedforward(x))))


@dataclass(frozen=True)
class SandwichConfig(BlockConfig, kind="sandwich"):
    """Norms before and after each branch."""

    ends = ("after_attention.gain", "after_cross.gain", "after_feedforward.gain")

    def build(self, *parts, **named) -> Block:
        return Sandwich(*parts, **named)
