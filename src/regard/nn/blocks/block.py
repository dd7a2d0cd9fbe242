"""Transformer blocks: attention and a feed-forward network, each around a residual path.

A block of a decoder that reads another sequence has cross-attention between the two (Vaswani et al. 2017, fig. 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.config import Choice
from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.blocks.stack import Stack
from regard.nn.cross_attention import CrossAttention, CrossAttentionContext
from regard.nn.dropout import dropout as dropout_layer
from regard.nn.feedforward import FeedForwardLayer


class Block(nn.Module):
    """Base class: holds the parts. Subclasses differ in where the norms are."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: FeedForwardLayer,
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
        self.drop = dropout_layer(dropout)

    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end each residual branch, at initialization."""
        for part in (self.attention, self.cross, self.feedforward):
            if part is not None:
                part.scale_residual(scale)


class PreNorm(Block):
    """x + f(norm(x)): the residual path is never normalized, so gradients reach every layer (Xiong et al. 2020)."""

    def forward(
        self, x: Tensor, context: AttentionContext, cache: Any = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        x = x + self.drop(self.attention(self.norm_attention(x), context, cache))
        if self.cross is not None and self.norm_cross is not None and cross is not None:
            x = x + self.drop(self.cross(self.norm_cross(x), cross))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))


class PostNorm(Block):
    """norm(x + f(x)): as in the original Transformer (Vaswani et al. 2017, sec. 3.1)."""

    def forward(
        self, x: Tensor, context: AttentionContext, cache: Any = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        x = self.norm_attention(x + self.drop(self.attention(x, context, cache)))
        if self.cross is not None and self.norm_cross is not None and cross is not None:
            x = self.norm_cross(x + self.drop(self.cross(x, cross)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))


class BlockConfig(Choice):
    """How the parts of a block are connected."""

    final_norm = True  # whether the stack ends with one more norm

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
        raise NotImplementedError

    def stack(self, blocks: Iterable[nn.Module], repeat: int = 1) -> Stack:
        """The blocks as one module; each runs ``repeat`` times in a row."""
        return Stack(blocks, repeat)


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
