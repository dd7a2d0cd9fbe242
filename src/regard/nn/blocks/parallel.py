"""The parallel block: attention and feed-forward network side by side from one norm (Wang & Komatsuzaki 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttention, CrossAttentionContext


class Parallel(Block):
    """x + attention(norm(x)) + feedforward(norm(x)) (Chowdhery et al. 2022, PaLM, sec. 2).

    No branch waits for another, and half of the norms are saved. Cross-attention, where there is any, is a third.
    """

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: nn.Module,
        norm: nn.Module,
        dropout: float = 0.0,
        *,
        cross: CrossAttention | None = None,
    ):
        super().__init__(attention, feedforward, norm, nn.Identity(), dropout, cross=cross)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: Any = None,
        cross_context: CrossAttentionContext | None = None,
    ) -> Tensor:
        normed = self.norm_attention(x)
        branches = self.drop(self.attention(normed, context, memory)) + self.drop(self.feedforward(normed))
        if self.cross is not None and cross_context is not None:
            branches = branches + self.drop(self.cross(normed, cross_context))
        return x + branches


@dataclass(frozen=True)
class ParallelConfig(BlockConfig, kind="parallel"):
    """Attention and feed-forward network side by side from one norm."""

    def build(
        self,
        attention: SelfAttention,
        feedforward: nn.Module,
        norm_attention: nn.Module,
        norm_feedforward: nn.Module,
        dropout: float,
        *,
        cross: CrossAttention | None = None,
        norm_cross: nn.Module | None = None,
    ) -> Block:
        return Parallel(attention, feedforward, norm_attention, dropout, cross=cross)
