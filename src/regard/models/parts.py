"""The options that GPT, the encoder and the encoder-decoder share, and how their blocks are built from them."""

from __future__ import annotations

from typing import Any

from regard.attention import BACKENDS, AttentionConfig, LayerSpec, Mechanism
from regard.errors import UserError
from regard.models.base import REDUCED, ModelConfig, check_dropouts, check_heads, check_sizes
from regard.nn import (
    Block,
    BlockConfig,
    FeedForwardConfig,
    NoPositionConfig,
    NormConfig,
    Position,
    PositionConfig,
    ProjectionConfig,
)


class AttentionModelConfig(ModelConfig):
    """Base class of the configs of models with attention. Each declares these options as fields."""

    heads: int
    kv_heads: int | None
    dropout: float
    attention_dropout: float | None
    tied: bool
    bias: bool
    qk_norm: bool
    backend: str
    projection: ProjectionConfig
    attention: AttentionConfig
    norm: NormConfig
    position: PositionConfig
    feedforward: FeedForwardConfig
    block: BlockConfig

    def check(self) -> None:
        check_sizes(self, "vocabulary", "context", "layers", "heads", "width")
        check_heads(self.width, self.heads)
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly; kv_heads = 1 would do"
            )
        check_dropouts(self, "dropout", "attention_dropout")
        self.attention.check()
        self.feedforward.check()
        self.projection.fits(self.width, self.heads, self.key_heads)
        if self.backend not in ("auto", *BACKENDS):
            raise ValueError(f"there is no backend {self.backend!r}; choose from auto, {', '.join(BACKENDS)}")

    @property
    def key_heads(self) -> int:
        """The number of key/value heads."""
        return self.kv_heads or self.heads

    @property
    def positional(self) -> bool:
        """Whether the model has a position encoding."""
        return not isinstance(self.position, NoPositionConfig)

    def reduced_heads(self) -> dict[str, int | None]:
        """The numbers of heads of a reduced config."""
        heads = min(self.heads, REDUCED.heads)
        return {"heads": heads, "kv_heads": self.kv_heads and max(1, heads * self.kv_heads // self.heads)}

    def build_position(self, *, causal: bool = True) -> Position:
        """The position encoding; a rotation covers the part of a head that the projection reserves for it."""
        sizes: dict[str, Any] = {"width": self.width, "context": self.context, "causal": causal}
        rotary, head_width = self.projection.rotary_width(self.width, self.heads), self.width // self.heads
        position = self.position.build(head_width=rotary, **sizes)
        rotates = type(position).rotation is not Position.rotation
        position = position if rotates or rotary == head_width else self.position.build(head_width=head_width, **sizes)
        if self.tied and position.token_width(self.width) != self.width:
            raise UserError("concatenated positions leave the embedding narrower than the head; set tied = false")
        return position

    def build_mechanism(self, attention: AttentionConfig, position: Position | None = None) -> Mechanism:
        """The mechanism of one layer, with the bias of ``position``."""
        dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
        head_width = self.projection.head_width(self.width, self.heads) if position else self.width // self.heads
        bias = position.bias() if position else None
        return attention.mechanism(
            LayerSpec(self.heads, self.key_heads, head_width, self.context, bias, dropout, self.backend)
        )

    def build_block(
        self, attention: AttentionConfig, position: Position, across: AttentionConfig | None = None
    ) -> Block:
        """One block; ``across``: with this cross-attention."""
        sizes, options = (self.width, self.heads, self.key_heads), {"bias": self.bias, "qk_norm": self.qk_norm}
        layer = self.projection.build(*sizes, self.build_mechanism(attention, position), **options)
        norms = [self.norm.build(self.width) for _ in range(3)]
        cross: dict[str, Any] = {}
        if across is not None:
            layer_across = self.projection.cross(*sizes, self.build_mechanism(across), **options)
            cross = {"cross": layer_across, "norm_cross": norms[2]}
        feedforward = self.feedforward.build(self.width, bias=self.bias)
        return self.block.build(layer, feedforward, *norms[:2], dropout=self.dropout, **cross)


def check_length(position: Position, length: int, what: str = "the input") -> int:
    """``length``, if the position encoding supports it."""
    if position.limit is not None and length > position.limit:
        raise UserError(
            f"{what} has {length} tokens, but the learned positions end at {position.limit}; use fewer tokens"
        )
    return length
