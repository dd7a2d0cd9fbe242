"""Transformer blocks: attention and a feed-forward network, each around a residual path; and the stack that runs them.

A block of a decoder that reads another sequence has cross-attention between the two (Vaswani et al. 2017, fig. 1).
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.config import Choice, option
from regard.nn.attention import AttentionContext, CrossAttention, SelfAttention
from regard.nn.feedforward import FeedForwardLayer
from regard.nn.norm import LayerNorm, RMSNorm


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
        self.norm_cross = nn.Identity() if norm_cross is None else norm_cross
        self.cross = cross
        self.norm_feedforward = norm_feedforward
        self.feedforward = feedforward
        self.drop = nn.Dropout(dropout)

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end each residual branch, at initialization."""
        for part in (self.attention.out, self.cross and self.cross.out):
            if part is not None:
                part.weight.mul_(scale)
        self.feedforward.scale_residual(scale)


class PreNorm(Block):
    """x + f(norm(x)): the residual path is never normalized, so gradients reach every layer (Xiong et al. 2020)."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = x + self.drop(self.attention(self.norm_attention(x), context))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norm_cross(x), context.cross))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))


class PostNorm(Block):
    """norm(x + f(x)): as in the original Transformer (Vaswani et al. 2017, sec. 3.1)."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = self.norm_attention(x + self.drop(self.attention(x, context)))
        if self.cross is not None:
            x = self.norm_cross(x + self.drop(self.cross(x, context.cross)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))


class NoResidual(Block):
    """f(norm(x)): a gradient passes through every layer (He et al. 2016 show what that costs)."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = self.drop(self.attention(self.norm_attention(x), context))
        if self.cross is not None:
            x = self.drop(self.cross(self.norm_cross(x), context.cross))
        return self.drop(self.feedforward(self.norm_feedforward(x)))


class Parallel(Block):
    """x + attention(norm(x)) + feedforward(norm(x)) (Wang & Komatsuzaki 2021; Chowdhery et al. 2022, PaLM, sec. 2).

    The branches are independent and share one norm. Cross-attention, if there is any, is a third branch.
    """

    def __init__(self, *parts, **named):
        super().__init__(*parts, **named)
        self.norm_feedforward, self.norm_cross = nn.Identity(), nn.Identity()  # there is one norm

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        normed = self.norm_attention(x)
        branches = self.drop(self.attention(normed, context)) + self.drop(self.feedforward(normed))
        if self.cross is not None:
            branches = branches + self.drop(self.cross(normed, context.cross))
        return x + branches


class Sandwich(Block):
    """x + norm'(f(norm(x))): the second norm fixes the scale of what a branch adds.

    Ding et al. 2021, CogView, sec. 2.4; Gemma 2, 2024, sec. 2.
    """

    def __init__(self, *parts, **named):
        super().__init__(*parts, **named)
        self.after_attention = deepcopy(self.norm_attention)  # norms of the same kind
        self.after_cross = deepcopy(self.norm_cross)
        self.after_feedforward = deepcopy(self.norm_feedforward)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = x + self.drop(self.after_attention(self.attention(self.norm_attention(x), context)))
        if self.cross is not None:
            x = x + self.drop(self.after_cross(self.cross(self.norm_cross(x), context.cross)))
        return x + self.drop(self.after_feedforward(self.feedforward(self.norm_feedforward(x))))

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Scale the gain of the second norm: it would undo any scale of the matrix before it."""
        if not isinstance(self.after_attention, LayerNorm | RMSNorm):
            super().scale_residual(scale)
        for norm in (self.after_attention, self.after_cross, self.after_feedforward):
            if isinstance(norm, LayerNorm | RMSNorm):
                norm.gain.mul_(scale)


class Gated(PreNorm):
    """Before the block x + tanh(a) cross(norm(x)), then x + tanh(b) f(norm(x)) (Alayrac et al. 2022, Flamingo, fig. 4).

    With the gates a and b at 0 the block is one without a memory; f is another feed-forward network.
    """

    def __init__(self, *parts, gate: float = 0.0, **named):
        super().__init__(*parts, **named)
        if self.cross is not None:
            self.gates = nn.Parameter(torch.full((2,), gate))
            self.norm_dense, self.dense = deepcopy(self.norm_feedforward), deepcopy(self.feedforward)  # of its kind

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        if self.cross is not None and context.cross is not None:  # a text without an image is a text
            attended, dense = self.gates.tanh()
            x = x + attended * self.drop(self.cross(self.norm_cross(x), context.cross))
            x = x + dense * self.drop(self.dense(self.norm_dense(x)))
        x = x + self.drop(self.attention(self.norm_attention(x), context))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Only of the block itself: a gated branch that starts at 0 behind a gate of 0 would never get a gradient."""
        self.attention.out.weight.mul_(scale)
        self.feedforward.scale_residual(scale)


class Stack(nn.ModuleList):
    """Blocks in order of computation. A module list, so that parameters are named ``blocks.0.attention...``."""

    compilable = True  # ``torch.compile`` can trace a training step

    def __init__(self, blocks: Iterable[Block], repeat: int = 1):
        super().__init__(blocks)
        self.repeat = repeat

    @property
    def layers(self) -> list[Block]:
        """The block of each layer: every block ``repeat`` times."""
        return [cast(Block, block) for block in self for _ in range(self.repeat)]

    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end each residual branch, at initialization."""
        for block in self:
            cast(Block, block).scale_residual(scale)

    def forward(self, x: Tensor, contexts: Sequence[AttentionContext], *, recompute: bool = False) -> Tensor:
        """x [B, N, C] through all layers, each with its context.

        ``recompute``: the activations inside a block are not stored, but computed again in the backward pass.
        """
        for output in self.outputs(x, contexts, recompute=recompute):
            x = output
        return x

    def outputs(self, x: Tensor, contexts: Sequence[AttentionContext], *, recompute: bool = False) -> Iterator[Tensor]:
        """The output of each layer in turn; arguments as for ``forward``."""
        for block, context in zip(self.layers, contexts, strict=True):
            x = checkpoint(block, x, context, use_reentrant=False) if recompute else block(x, context)  # type: ignore
            yield x


class BlockConfig(Choice):
    """How the parts of a block are connected."""

    block: ClassVar[type[Block]]  # what ``build`` makes
    final_norm = True  # whether the stack ends with one more norm

    def build(self, *parts, **named) -> Block:
        """The block; the arguments are those of ``Block``."""
        return self.block(*parts, **named)

    def stack(self, blocks: Iterable[Block], repeat: int = 1) -> Stack:
        """The blocks as one module; each runs ``repeat`` times in a row."""
        return Stack(blocks, repeat)


@dataclass(frozen=True)
class PreNormConfig(BlockConfig, kind="pre-norm"):
    """Norms inside the residual branches."""

    block = PreNorm


@dataclass(frozen=True)
class PostNormConfig(BlockConfig, kind="post-norm"):
    """Norms on the residual path."""

    block, final_norm = PostNorm, False


@dataclass(frozen=True)
class NoResidualConfig(BlockConfig, kind="no-residual"):
    """No residual paths, for comparison; norms before each layer."""

    block = NoResidual


@dataclass(frozen=True)
class ParallelConfig(BlockConfig, kind="parallel"):
    """Attention and feed-forward network side by side from one norm."""

    block = Parallel


@dataclass(frozen=True)
class SandwichConfig(BlockConfig, kind="sandwich"):
    """Norms before and after each branch."""

    block = Sandwich


@dataclass(frozen=True)
class GatedCrossConfig(BlockConfig, kind="gated"):
    """Norms inside the branches, and cross-attention behind gates."""

    block = Gated
    gate: float = option(0.0, "the gates a and b at first; 0 leaves a pretrained model as it is, 1 learns sooner")

    def build(self, *parts, **named) -> Block:
        return Gated(*parts, gate=self.gate, **named)
