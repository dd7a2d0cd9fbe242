"""The options that models with attention share, and how their blocks are built from them."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from torch import nn

from regard.attention import BACKENDS, AttentionConfig, LayerSpec, Mechanism, SoftmaxConfig
from regard.config import option
from regard.errors import UserError
from regard.models.config import REDUCED, ModelConfig
from regard.nn.attention import AttentionSizes, ProjectionConfig, SeparateConfig
from regard.nn.blocks.block import Block, BlockConfig, PreNormConfig, Stack
from regard.nn.feedforward import FeedForwardConfig, ReLUSquaredConfig
from regard.nn.norm import NormConfig, RMSNormConfig
from regard.nn.positions.position import NoPositionConfig, Position, PositionConfig, RotaryConfig


@dataclass(frozen=True)
class BlocksConfig(ModelConfig):
    """The options of a stack of blocks with attention, whatever it reads."""

    fewest_layers: ClassVar[int] = 1  # 0: it may be the embedding of another model, without blocks
    layers: int = option(4, "number of blocks", least=0)
    heads: int = option(4, "query heads per layer", least=1)
    kv_heads: int | None = option(None, "key/value heads per layer (default: as many as query heads)")
    width: int = option(128, "model width", least=1)
    dropout: float = option(0.0, "dropout on embeddings, attention and residual branches", least=0, below=1)
    attention_dropout: float | None = option(
        None, "dropout on attention weights, if it differs from the rest", least=0, below=1
    )
    bias: bool = option(False, "biases in linear layers")
    qk_norm: bool = option(True, "normalize queries and keys per head")
    backend: str = option(
        "auto", "attention backend: auto, edges, sdpa, flex, banded, blocked, small_cpu, decode_gpu, ring, reference"
    )
    zero_init: bool = option(True, "initialize residual branches with zero rather than small weights")
    projection: ProjectionConfig = field(default_factory=SeparateConfig)
    attention: AttentionConfig = field(default_factory=SoftmaxConfig)
    norm: NormConfig = field(default_factory=RMSNormConfig)
    feedforward: FeedForwardConfig = field(default_factory=ReLUSquaredConfig)
    block: BlockConfig = field(default_factory=PreNormConfig)

    def check(self) -> None:
        super().check()
        if self.layers < self.fewest_layers:
            raise ValueError(f"layers must be at least {self.fewest_layers}, not {self.layers}")
        for part in (self.attention, self.feedforward, self.projection):
            part.check()
        if self.heads > self.width:
            raise ValueError(f"{self.heads} heads do not fit into a width of {self.width}; heads = {self.width} would")
        if self.projection.size is None and self.width % self.heads:
            near = self._nearest_heads()
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads; heads = {near} would do")
        if self.projection.size is not None and self.width // (self.width // self.heads) != self.heads:
            raise ValueError(f"a width of {self.width} cannot have {self.heads} heads of another width; change heads")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly; kv_heads = 1 would do"
            )
        self.projection.fits(self.width, self.heads, self.key_heads)
        if self.backend not in ("auto", *BACKENDS):
            raise ValueError(f"there is no backend {self.backend!r}; choose from auto, {', '.join(BACKENDS)}")

    def _nearest_heads(self) -> int:
        """The number of heads next to this one that divides the width; of two, the default."""
        gaps = ((self.heads - gap, self.heads + gap) for gap in range(1, self.heads))
        fits = ([one for one in pair if self.width % one == 0] for pair in gaps)  # 1 does at the latest
        near = next(filter(None, fits))
        return type(self).heads if type(self).heads in near else near[0]

    @property
    def key_heads(self) -> int:
        """The number of key/value heads."""
        return self.kv_heads or self.heads

    def reduced(self) -> Self:
        heads = min(self.heads, REDUCED.heads)
        kv_heads = self.kv_heads and max(1, heads * self.kv_heads // self.heads)
        return replace(super().reduced(), heads=heads, kv_heads=kv_heads)

    def build_mechanism(self, attention: AttentionConfig, position: Position | None = None) -> Mechanism:
        """The mechanism of one layer, with the bias of ``position``."""
        dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
        own = self.projection.size or self.width // self.heads
        head_width = self.projection.head_width(self.width, self.heads) if position else own
        bias = position.bias() if position else None
        return attention.mechanism(
            LayerSpec(self.heads, self.key_heads, head_width, self.context, bias, dropout, self.backend)
        )

    def build_block(
        self, attention: AttentionConfig, position: Position, across: AttentionConfig | None = None
    ) -> Block:
        """One block; ``across``: with this cross-attention."""
        sizes = AttentionSizes(self.width, self.heads, self.key_heads, self.bias, self.qk_norm)
        layer = (attention.layer or self.projection.build)(sizes, self.build_mechanism(attention, position))
        norms = [self.norm.build(self.width) for _ in range(2)]
        cross = norm_cross = None
        if across is not None:
            cross = self.projection.build_cross(sizes, self.build_mechanism(across))
            norm_cross = self.norm.build(self.width)
        feedforward = self.feedforward.build(self.width, bias=self.bias)
        return self.block.build(layer, feedforward, *norms, self.dropout, cross=cross, norm_cross=norm_cross)

    def build_final_norm(self) -> nn.Module:
        """The norm between the blocks and the head, unless the blocks end with one."""
        return self.norm.build(self.width) if self.block.final_norm else nn.Identity()

    def last_norm(self, blocks: Stack, norm: nn.Module) -> nn.Module:
        """The norm whose output the head reads: ``norm``, the final one, or that of the last block."""
        return norm if self.block.final_norm else blocks.layers[-1].norm_feedforward


@dataclass(frozen=True)
class AttentionModelConfig(BlocksConfig):
    """Base class of the configs of models of tokens with attention; they replace the defaults that differ."""

    vocabulary: int = option(65, "size of the vocabulary", least=1)
    context: int = option(256, "longest sequence in training, in tokens", least=1)
    tied: bool = option(True, "share the embedding with the output head")
    position: PositionConfig = field(default_factory=RotaryConfig)

    @property
    def positional(self) -> bool:
        """Whether the model has a position encoding."""
        return not isinstance(self.position, NoPositionConfig)

    def without_positions(self) -> Self | None:
        return replace(self, position=NoPositionConfig()) if self.positional else None

    def build_position(self, *, causal: bool = True, context: int | None = None) -> Position:
        """The position encoding; a rotation covers the part of a head that the projection reserves for it."""
        build = partial(self.position.build, width=self.width, context=context or self.context, causal=causal)
        rotary, head_width = self.projection.rotary_width(self.width, self.heads), self.width // self.heads
        position = build(head_width=rotary)
        rotates = type(position).rotation is not Position.rotation
        position = position if rotates or rotary == head_width else build(head_width=head_width)
        if self.tied and position.token_width(self.width) != self.width:
            raise UserError("concatenated positions leave the embedding narrower than the head; set tied = false")
        return position


def check_length(position: Position, length: int, what: str = "the input") -> int:
    """``length``, if the position encoding supports it."""
    if position.limit is not None and length > position.limit:
        raise UserError(
            f"{what} has {length} tokens, but the learned positions end at {position.limit}; use fewer tokens"
        )
    return length
