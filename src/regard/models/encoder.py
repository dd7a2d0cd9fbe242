"""An encoder-only Transformer, as BERT (Devlin et al. 2019): every token attends to the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention import AnySlots, Full, Packed, Padded, Range, Slots
from regard.config import option
from regard.errors import UserError
from regard.models.base import Encoder
from regard.models.parts import AttentionModelConfig, check_length
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.feedforward import FeedForwardConfig, GELUConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig, HeadTransform, TokensHeadConfig, pooled
from regard.nn.init import damp_logits, initialize, normal
from regard.nn.linear import Linear
from regard.nn.positions.position import LearnedPositionConfig, PositionConfig


@dataclass(frozen=True)
class EncoderConfig(AttentionModelConfig, kind="encoder"):
    """Sizes and parts of an encoder. By default it predicts masked tokens; ``head`` chooses other outputs."""

    generates = False
    vocabulary: int = option(65, "size of the vocabulary, without an additional mask token")
    mask_token: int | None = option(None, "id of the mask token, if the vocabulary has one (default: an additional id)")
    token_types: int | None = option(
        None, "number of token types (segments) with a vector each (default: none)", least=1
    )
    embedding_norm: bool = option(False, "normalize the embeddings before the first block")
    classes: int | None = option(
        None, "classify whole sequences into so many classes: short for a head without a bias", least=1
    )
    pool: Literal["cls", "mean"] = option("mean", "with classes: by the first token of a sequence, or the mean of all")
    position: PositionConfig = field(default_factory=LearnedPositionConfig)
    feedforward: FeedForwardConfig = field(default_factory=GELUConfig)
    head: HeadConfig = field(default_factory=TokensHeadConfig)

    def check(self) -> None:
        super().check()
        if self.mask_token is not None and not 0 <= self.mask_token < self.vocabulary:
            raise ValueError(f"mask_token is {self.mask_token}, but the ids end at {self.vocabulary - 1}")
        if self.classes is not None and self.head != TokensHeadConfig():
            raise ValueError(f'classes and a head of kind "{self.head.kind}" exclude each other; leave classes out')
        self.head.check()

    @property
    def output(self) -> HeadConfig:
        """The head, that of ``classes`` and ``pool`` included."""
        if self.classes is None:
            return self.head
        return ClassesHeadConfig(self.classes, pool=self.pool, bias=False)

    @property
    def token_ids(self) -> int:
        """How many token ids there are, an additional mask token included."""
        return self.vocabulary + (self.mask_token is None)

    def make(self) -> TransformerEncoder:
        return TransformerEncoder(self)


class TransformerEncoder(Encoder):
    """Tokens [B, N] to outputs of its head: [B, N, V] for tokens, [B, N, classes] or, of whole rows, [B, classes]."""

    config: EncoderConfig
    blocks: Stack

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        c = config
        self.position = c.build_position(causal=False)
        self.limit, self.positional = self.position.limit, c.positional
        self.token_scale = self.position.token_scale(c.width)
        self.embed = nn.Embedding(c.token_ids, self.position.token_width(c.width))
        self.embed_types = None if c.token_types is None else nn.Embedding(c.token_types, c.width)
        self.token_types = c.token_types or 0
        self.norm_embed = c.norm.build(c.width) if c.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(c.dropout)
        self.blocks = c.block.stack(c.build_block(c.attention, self.position) for _ in range(c.layers))
        self.compilable = self.blocks.compilable
        self.norm = c.build_final_norm()
        head, self.predicts_tokens = c.output, c.output.predicts_tokens
        self.transform, outputs = head.transform(c.width, c.norm), head.outputs(c.token_ids)
        self.unembed = Linear(c.width, outputs, bias=head.bias) if outputs else nn.Identity()  # type: ignore[assignment]
        if c.tied and self.predicts_tokens:
            self.unembed.weight = self.embed.weight
        self.masks = [Full() & c.attention.pattern()]
        self.reset()

    @property
    def mask_token(self) -> int:
        return self.config.vocabulary if self.config.mask_token is None else self.config.mask_token

    def reset(self) -> None:
        """As GPT-2: normal with deviation 0.02, residual branches scaled down with depth, or zero."""
        initialize(self, normal(0.02), normal(0.02))
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * self.config.layers) ** -0.5)
        own = self.transform.norm if isinstance(self.transform, HeadTransform) else None
        damp_logits(own or self.config.last_norm(self.blocks, self.norm), self.config.width, 0.02)

    def forward(self, tokens: Tensor, slots: AnySlots | None = None, types: Tensor | None = None) -> Tensor:
        x = self.features(tokens, slots, types)
        return self.head(x if self.config.output.pool is None else self.pooled(x, slots))

    def features(self, tokens: Tensor, slots: AnySlots | None = None, types: Tensor | None = None) -> Tensor:
        """Features [B, N, C] of every token. ``slots``: padding or packing; ``types``: token types [B, N] (0)."""
        slots = Range(tokens.shape[1]) if slots is None else slots
        check_length(self.position, slots.length)
        phase = slots.phases(tokens.device)
        x = self._embed(tokens, phase, types)
        plan = self.blocks.layers[0].attention.mechanism.plan(self.masks[0].bind(tokens, phase), slots, like=x)
        contexts = [AttentionContext(plan, self.position.rotation(phase))] * self.config.layers
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def _embed(self, tokens: Tensor, phase: Tensor, types: Tensor | None) -> Tensor:
        """Token, position and token type embeddings [B, N, C] (Devlin et al. 2019, fig. 2)."""
        x = self.embed(tokens)
        x = self.position.embed(x if self.token_scale == 1 else x * self.token_scale, phase)
        if self.embed_types is not None:
            x = x + self.embed_types(torch.zeros_like(tokens) if types is None else types)
        elif types is not None:
            raise UserError("this encoder has no token types; leave them out, or set token_types = 2")
        return self.drop(self.norm_embed(x))

    def pooled(self, x: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Features [B, N, C] of tokens to one vector per row, [B, C]."""
        if isinstance(slots, Packed | Slots):
            raise UserError("a row of several documents has no single class; give each document its own row")
        return pooled(x, slots.filled() if isinstance(slots, Padded) else None, self.config.output.pool or "mean")

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks) if self.predicts_tokens else []

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C], pooled for a head of whole rows, to outputs. An additional mask token has no logit."""
        outputs = self.unembed(self.transform(x))
        return outputs[..., : self.config.vocabulary] if self.predicts_tokens else outputs
