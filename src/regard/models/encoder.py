"""An encoder-only Transformer, as BERT (Devlin et al. 2019): every token attends to the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from regard.attention import AnySlots, Full, Packed, Padded, Range, Slots
from regard.config import option
from regard.errors import UserError
from regard.models.base import Encoder, check_sizes
from regard.models.parts import AttentionModelConfig, check_length
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.feedforward import FeedForwardConfig, GELUConfig
from regard.nn.init import damp_logits, initialize, normal
from regard.nn.linear import Linear
from regard.nn.positions.position import LearnedPositionConfig, PositionConfig


@dataclass(frozen=True)
class EncoderConfig(AttentionModelConfig, kind="encoder"):
    """Sizes and parts of an encoder. Without ``classes`` it predicts masked tokens, with ``classes`` it classifies."""

    generates = False
    vocabulary: int = option(65, "size of the vocabulary, without the mask token")
    classes: int | None = option(None, "classify whole sequences into so many classes (none: predict masked tokens)")
    pool: Literal["cls", "mean"] = option("mean", "classify by the first token of a sequence, or by the mean of all")
    position: PositionConfig = field(default_factory=LearnedPositionConfig)
    feedforward: FeedForwardConfig = field(default_factory=GELUConfig)

    def check(self) -> None:
        super().check()
        check_sizes(self, "classes")

    def make(self) -> TransformerEncoder:
        return TransformerEncoder(self)


class TransformerEncoder(Encoder):
    """Tokens [B, N] to logits [B, N, V], or to [B, classes]. Token id V is the mask token."""

    config: EncoderConfig
    blocks: Stack

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        c = config
        self.position = c.build_position(causal=False)
        self.limit, self.positional = self.position.limit, c.positional
        self.token_scale = self.position.token_scale(c.width)
        self.embed = nn.Embedding(c.vocabulary + 1, self.position.token_width(c.width))
        self.drop = nn.Dropout(c.dropout)
        self.blocks = c.block.stack(c.build_block(c.attention, self.position) for _ in range(c.layers))
        self.compilable = self.blocks.compilable
        self.norm = c.build_final_norm()
        self.unembed = Linear(c.width, c.classes or c.vocabulary + 1, bias=False)
        if c.tied and c.classes is None:
            self.unembed.weight = self.embed.weight
        self.masks = [Full() & c.attention.pattern()]
        self.reset()

    @property
    def mask_token(self) -> int:
        return self.config.vocabulary

    def reset(self) -> None:
        """As GPT-2: normal with deviation 0.02, residual branches scaled down with depth, or zero."""
        initialize(self, normal(0.02), normal(0.02))
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * self.config.layers) ** -0.5)
        damp_logits(self.config.last_norm(self.blocks, self.norm), self.config.width, 0.02)

    def forward(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        x = self.features(tokens, slots)
        return self.head(x if self.config.classes is None else self.pooled(x, slots))

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Features [B, N, C] of every token. ``slots`` describes padding or packing. Default: one unpadded row."""
        slots = Range(tokens.shape[1]) if slots is None else slots
        check_length(self.position, slots.length)
        phase = slots.phases(tokens.device)
        x = self.embed(tokens)
        x = self.drop(self.position.embed(x if self.token_scale == 1 else x * self.token_scale, phase))
        plan = self.blocks.layers[0].attention.mechanism.plan(self.masks[0].bind(tokens, phase), slots, like=x)
        contexts = [AttentionContext(plan, self.position.rotation(phase))] * self.config.layers
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def pooled(self, x: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Features [B, N, C] of tokens to one vector per row, [B, C]."""
        if isinstance(slots, Packed | Slots):
            raise UserError("a row of several documents has no single class; give each document a row of its own")
        if self.config.pool == "cls":
            return x[:, 0]
        if not isinstance(slots, Padded):
            return x.mean(1)
        real = slots.filled()[:, :, None]
        return x.masked_fill(~real, 0).sum(1) / real.sum(1)

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C] to logits over the vocabulary or, pooled, over the classes."""
        logits = self.unembed(x)
        return logits if self.config.classes is not None else logits[..., : self.config.vocabulary]
