"""Transformer blocks: attention and a feed-forward network, each around a residual path.

A block of a decoder that reads another sequence has cross-attention between the two (Vaswani et al. 2017, fig. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.config import Choice
from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.cross_attention import CrossAttention, CrossAttentionContext
from regard.nn.dropout import Dropout
from regard.nn.fused.branches import attention_branch, feedforward_branch
from regard.nn.fused.decode_gemv import attention_row, feedforward_row


class Block(nn.Module):
    """Base: the parts. Where the norms stand is the subclass's only difference."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: nn.Module,
        norm_attention: nn.Module,
        norm_feedforward: nn.Module,
        dropout: float = 0.0,
        *,
        cross: CrossAttention | None = None,
        norm_cross: nn.Module | None = None,
    ):
        super().__init__()
        self.norm_attention = norm_attention
        self.attention = attention
        self.norm_cross = norm_cross
        self.cross = cross
        self.norm_feedforward = norm_feedforward
        self.feedforward = feedforward
        self.drop = Dropout(dropout) if dropout else nn.Identity()


class PreNorm(Block):
    """x + f(norm(x)): the residual path is never normalised, so gradients reach every layer (Xiong et al. 2020)."""

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: Any = None,
        cross_context: CrossAttentionContext | None = None,
    ) -> Tensor:
        plain = isinstance(self.drop, nn.Identity)
        whole = plain and memory is None
        attended = attention_branch(x, self.norm_attention, self.attention, context) if whole else None
        attended = (
            attention_row(x, self.norm_attention, self.attention, context, memory) if attended is None else attended
        )
        x = x + self.drop(self.attention(self.norm_attention(x), context, memory)) if attended is None else attended
        if self.cross is not None and self.norm_cross is not None and cross_context is not None:
            x = x + self.drop(self.cross(self.norm_cross(x), cross_context))
        thought = feedforward_branch(x, self.norm_feedforward, self.feedforward) if plain else None
        thought = feedforward_row(x, self.norm_feedforward, self.feedforward) if thought is None else thought
        return x + self.drop(self.feedforward(self.norm_feedforward(x))) if thought is None else thought


class PostNorm(Block):
    """norm(x + f(x)): as in the original Transformer (Vaswani et al. 2017, sec. 3.1)."""

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: Any = None,
        cross_context: CrossAttentionContext | None = None,
    ) -> Tensor:
        x = self.norm_attention(x + self.drop(self.attention(x, context, memory)))
        if self.cross is not None and self.norm_cross is not None and cross_context is not None:
            x = self.norm_cross(x + self.drop(self.cross(x, cross_context)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))


class BlockConfig(Choice):
    """How the parts of a block are put together."""

    final_norm = True  # whether the stack needs one more norm at its end
    compilable = True  # whether a compiler may trace the stack while it trains
    ends = ("attention.out.weight", "feedforward.down.weight")  # of residual branches: they start at zero or small

    def run(
        self,
        blocks: Sequence[nn.Module],
        x: Tensor,
        contexts: Sequence[AttentionContext],
        memories: Sequence[Any],
        recompute: bool,
    ) -> Tensor:
        """Through all blocks, each with its scene and, while decoding, its memory (else None).

        ``recompute``: nothing inside a block is kept for the backward pass.
        """
        for block, context, memory in zip(blocks, contexts, memories, strict=True):
            again = recompute and memory is None
            x = checkpoint(block, x, context, use_reentrant=False) if again else block(x, context, memory)  # type: ignore
        return x

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
        raise NotImplementedError


@dataclass(frozen=True)
class PreNormConfig(BlockConfig, kind="pre-norm"):
    """Norms inside the residual branches."""

    def build(self, *parts, **named) -> Block:
        return PreNorm(*parts, **named)


@dataclass(frozen=True)
class PostNormConfig(BlockConfig, kind="post-norm"):
    """Norms on the residual path."""

    final_norm = False

    def build(self, *parts, **named) -> Block:
        return PostNorm(*parts, **named)
