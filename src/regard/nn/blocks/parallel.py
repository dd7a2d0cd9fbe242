"""The parallel block: attention and feed-forward network side by side from one norm (Wang & Komatsuzaki 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.cross_attention import CrossAttention, CrossAttentionContext
from regard.nn.feedforward import FeedForwardLayer


class Parallel(Block):
    """x + attention(norm(x)) + feedforward(norm(x)) (Chowdhery et al. 2022, PaLM, sec. 2).

    The branches are independent and share one norm. Cross-attention, if there is any, is a third branch.
    """

    def forward(
        self, x: Tensor, context: AttentionContext, cache: Any = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        normed = self.norm_attention(x)
        branches = self.drop(self.attention(normed, context, cache)) + self.drop(self.feedforward(normed))
        if self.cross is not None and cross is not None:
            branches = branches + self.drop(self.cross(normed, cross))
        return x + branches


@dataclass(frozen=True)
class ParallelConfig(BlockConfig, kind="parallel"):
    """Attention and feed-forward network side by side from one norm."""

    def build(
        self,
        attention: SelfAttention,
        feedforward: FeedForwardLayer,
        norm_attention: nn.Module,
        norm_feedforward: nn.Module,
        dropout: float,
        *,
        cross: CrossAttention | None = None,
        norm_cross: nn.Module | None = None,
    ) -> Block:
        return Parallel(attention, feedforward, norm_attention, nn.Identity(), dropout, cross=cross)
