"""Transformer blocks: attention and a feed-forward network, each around a residual path."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attend import KeyValues
from regard.config import Choice
from regard.layers.attention import Scene, SelfAttention
from regard.layers.branches import attention_branch, feedforward_branch


class Block(nn.Module):
    """Base: the parts. Where the norms stand is the subclass's only difference."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: nn.Module,
        norm_attention: nn.Module,
        norm_feedforward: nn.Module,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.norm_attention = norm_attention
        self.attention = attention
        self.norm_feedforward = norm_feedforward
        self.feedforward = feedforward
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()


class PreNorm(Block):
    """x + f(norm(x)): the residual path is never normalised, so gradients reach every layer (Xiong et al. 2020)."""

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None) -> Tensor:
        if isinstance(self.drop, nn.Identity):
            attended = attention_branch(x, self.norm_attention, self.attention, scene)
            x = x + self.attention(self.norm_attention(x), scene, memory) if attended is None else attended
            thought = feedforward_branch(x, self.norm_feedforward, self.feedforward)
            return x + self.feedforward(self.norm_feedforward(x)) if thought is None else thought
        x = x + self.drop(self.attention(self.norm_attention(x), scene, memory))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))


class PostNorm(Block):
    """norm(x + f(x)): as in the original Transformer (Vaswani et al. 2017, sec. 3.1)."""

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None) -> Tensor:
        x = self.norm_attention(x + self.drop(self.attention(x, scene, memory)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))


class BlockConfig(Choice):
    """How the parts of a block are put together."""

    final_norm = True  # whether the stack needs one more norm at its end

    def build(
        self,
        attention: SelfAttention,
        feedforward: nn.Module,
        norm_attention: nn.Module,
        norm_feedforward: nn.Module,
        dropout: float,
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
