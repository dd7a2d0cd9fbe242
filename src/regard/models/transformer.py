"""The Transformer: an encoder and a decoder with cross-attention between them (Vaswani et al. 2017, fig. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from regard.attention import (
    AttentionConfig,
    Causal,
    DecodeInput,
    Full,
    KVCache,
    Mechanism,
    Padded,
    Plan,
    Range,
    SoftmaxConfig,
)
from regard.config import option
from regard.errors import UserError
from regard.models.base import Seq2SeqModel, Seq2SeqState
from regard.models.config import REDUCED
from regard.models.parts import AttentionModelConfig, check_length
from regard.models.state import check_capacity
from regard.nn.attention import AttentionContext, Cache, CrossAttention, CrossAttentionContext
from regard.nn.blocks.block import Block, Stack
from regard.nn.feedforward import FeedForwardConfig, ReLUConfig
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNormConfig, NormConfig
from regard.nn.positions.position import PositionConfig, SinusoidalConfig
from regard.nn.source import SourceConfig, TokenSource, TokenSourceConfig

ROOM = 8  # KV caches grow by so many tokens: reordering beams copies them, empty places included


@dataclass(frozen=True)
class TransformerConfig(AttentionModelConfig, kind="transformer"):
    """Sizes and parts of an encoder-decoder. The defaults are a small one that a CPU trains in minutes."""

    vocabulary: int = option(8000, "size of the vocabulary")
    source_vocabulary: int | None = option(None, "size of the source vocabulary, if it is another", least=1)
    context: int = option(128, "longest sentence, in tokens")
    source_context: int | None = option(None, "longest source, if it is another", least=1)
    layers: int = option(3, "blocks of the encoder")
    decoder_layers: int | None = option(None, "blocks of the decoder (default: as many as the encoder's)", least=1)
    width: int = option(256, "model width")
    dropout: float = option(0.1, "dropout on embeddings, attention and residual branches")
    tied: bool = option(True, "share the embedding with the output head, and with the source if it has no vocabulary")
    scaled: bool = option(True, "multiply embeddings by the root of the width")
    joint: bool | None = option(None, "share the embedding of source and target (default: if it is tied, see there)")
    embedding_norm: bool = option(False, "normalize embedded tokens with their positions, as BART")
    head_bias: bool = option(False, "a bias on the logits")
    scaled_head: bool = option(False, "divide what the head reads by the root of the width, as T5")
    qk_norm: bool = option(False, "normalize queries and keys per head")
    memory: Literal["last", "same"] = option(
        "last", "a decoder layer attends to the encoder's last layer, or to the layer of the same number"
    )
    zero_init: bool = option(False, "initialize residual branches with zero rather than small weights")
    source: SourceConfig = field(default_factory=TokenSourceConfig, metadata={"help": "what the encoder reads"})
    across: AttentionConfig = field(default_factory=SoftmaxConfig, metadata={"help": "attention to the source"})
    norm: NormConfig = field(default_factory=LayerNormConfig)
    position: PositionConfig = field(default_factory=SinusoidalConfig)
    feedforward: FeedForwardConfig = field(default_factory=ReLUConfig)

    def check(self) -> None:
        super().check()
        self.across.check()
        if self.joint and not self.shares_embedding:
            raise ValueError("a joint embedding has one vocabulary; set source_vocabulary = none or joint = false")
        if self.memory == "same" and self.depth != self.layers:
            raise ValueError(
                f"with memory = same, decoder layer i attends to encoder layer i, but there are {self.layers} and "
                f"{self.depth} of them; set decoder_layers = {self.layers}"
            )

    @property
    def shares_embedding(self) -> bool:
        """Whether source and target have one embedding."""
        alike = self.source_vocabulary is None and isinstance(self.source, TokenSourceConfig)
        return alike and (self.tied if self.joint is None else self.joint)

    @property
    def depth(self) -> int:
        """The number of decoder blocks."""
        return self.decoder_layers or self.layers

    def reduced(self) -> Self:
        layers = min(self.layers, REDUCED.layers)
        deeper = self.decoder_layers and (layers if self.decoder_layers == self.layers else layers + 1)
        return replace(super().reduced(), decoder_layers=deeper)

    def make(self) -> Transformer:
        return Transformer(self)


class EncodedSource(NamedTuple):
    """What all beams of a source share: its length, and the keys and values of each decoder layer."""

    lengths: Tensor  # [B]
    layers: tuple[KVCache, ...]  # [B, G, S, D] each


class Transformer(Seq2SeqModel):
    """Source [B, S] and target inputs [B, T] to logits [B, T, V]."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        c = config
        self.position_source = c.build_position(causal=False, context=c.source_context)
        self.position = c.build_position()
        self.limit, self.positional = self.position.limit, c.positional
        token_width = self.position.token_width(c.width)
        self.token_scale = math.sqrt(c.width) if c.scaled else 1.0
        self.embed_source = c.source.build(c.source_vocabulary or c.vocabulary, token_width)
        self.source_vocabulary = self.embed_source.vocabulary
        self.embed = nn.Embedding(c.vocabulary, token_width)
        self.norm_embed_source, self.norm_embed = (
            c.norm.build(c.width) if c.embedding_norm else nn.Identity() for _ in range(2)
        )
        self.drop = nn.Dropout(c.dropout)
        self.encoder = c.block.stack(c.build_block(c.attention, self.position_source) for _ in range(c.layers))
        self.norm_source = c.build_final_norm()
        self.decoder = c.block.stack(c.build_block(c.attention, self.position, c.across) for _ in range(c.depth))
        self.norm = c.build_final_norm()
        self.unembed = Linear(c.width, c.vocabulary, bias=c.head_bias)
        if c.tied:
            self.unembed.weight = self.embed.weight
        if c.shares_embedding and isinstance(self.embed_source, TokenSource):
            self.embed_source.weight = self.embed.weight
        self.source_mask, self.target_mask, self.cross_mask = (
            Full() & c.attention.pattern(),
            Causal() & c.attention.pattern(),
            Full() & c.across.pattern(),
        )
        self.steppable = not self.target_mask.needs_tokens
        self.masks = list(dict.fromkeys((self.source_mask, self.target_mask, self.cross_mask)))
        self.reset()

    @property
    def blocks(self) -> list[nn.Module]:  # type: ignore[override]
        """Every block, the encoder's first."""
        return [*self.encoder, *self.decoder]

    @property
    def cache_per_token(self) -> int:
        """Of one source and one target token together."""
        c = self.config
        across = 2 * c.key_heads * (c.projection.size or c.width // c.heads)
        return c.depth * (c.projection.cache_width(c.width, c.heads, c.key_heads) + across)

    def residual_blocks(self) -> list[nn.Module]:
        """The decoder's blocks."""
        return list(self.decoder)

    def reset(self) -> None:
        """Xavier's uniform weights (Glorot & Bengio 2010), as in the paper's code; biases 0, gains 1.

        Residual branches are scaled down with depth, as GPT-2's, unless the residual path is normalized. Embeddings
        have the length 1/3: with length 1 the logits of a tied head would start with unit variance, and that of the
        input token near the root of the width, far from a uniform guess.
        """
        c = self.config
        table = normal(c.width**-0.5 / 3)
        initialize(self, nn.init.xavier_uniform_, table)
        table(self.unembed.weight)
        if c.zero_init or c.block.final_norm:
            self.encoder.scale_residual(0.0 if c.zero_init else (2 * c.layers) ** -0.5)
            self.decoder.scale_residual(0.0 if c.zero_init else (3 * c.depth) ** -0.5)

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Everything but the head, [B, T, C], each from the target tokens up to its own and the whole source.

        Target padding comes last, where a causal decoder does not see it, so it needs no lengths.
        """
        memories = self.encode(source, source_lengths)
        slots = Range(check_length(self.position, inputs.shape[1], "a translation"))
        phase = slots.phases(inputs.device)
        x = self._embed(inputs, phase)
        plan = _mechanism(self.decoder).plan(self.target_mask.bind(inputs, phase), slots, like=x)
        context = AttentionContext(plan, self.position.rotation(phase))
        lengths = self.embed_source.lengths(source_lengths)
        plan = self._cross_plan(inputs.shape[1], lengths, memories[0].shape[1], like=x)
        contexts = [context._replace(cross=CrossAttentionContext(plan, memory)) for memory in memories]
        return self.norm(self.decoder(x, contexts, recompute=self.checkpointing and self.training))

    def encode(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The memory [B, S, C] that each decoder layer attends to; its values at padding are arbitrary."""
        c, x = self.config, self.embed_source(source, lengths) * self.token_scale
        slots = Padded(self.embed_source.lengths(lengths), check_length(self.position_source, x.shape[1], "a source"))
        phase = slots.phases(source.device)
        x = self.drop(self.norm_embed_source(self.position_source.embed(x, phase)))
        plan = _mechanism(self.encoder).plan(self.source_mask.bind(source, phase), slots, like=x)
        contexts = [AttentionContext(plan, self.position_source.rotation(phase))] * c.layers
        outputs = list(self.encoder.outputs(x, contexts, recompute=self.checkpointing and self.training))
        if c.memory == "same":
            return [self.norm_source(x) for x in outputs]
        return [self.norm_source(outputs[-1])] * c.depth

    @torch.no_grad()
    def start(
        self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1
    ) -> Seq2SeqState:
        """Encode ``batch`` sources once; return an empty state for ``beams`` rows each of up to ``capacity`` tokens.

        Row b*beams + j is beam j of source b; the beams share the encoded source.
        """
        check_length(self.position, capacity, "a translation")
        if source.shape[0] != batch:
            raise ValueError(f"{source.shape[0]} sources were given for a batch of {batch}")
        memories, decoder = self.encode(source, source_lengths), self.decoder.layers
        layers = tuple(_cross(block).project(memory) for block, memory in zip(decoder, memories, strict=True))
        grows = _mechanism(self.decoder).grows  # else the state has room for all tokens, or a fixed size
        size = min(ROOM, capacity) if grows else capacity
        own = tuple(block.attention.start(batch * beams, size) for block in decoder)
        return Seq2SeqState(EncodedSource(self.embed_source.lengths(source_lengths), layers), own, capacity)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Consume tokens [B*beams, T] after those in ``state``; return logits [B*beams, T, V] and the new state."""
        if not self.steppable:
            raise UserError(
                f"an encoder-decoder cannot decode with {self.target_mask}, which depends on earlier tokens"
            )
        shared, (rows, count), used = state.shared, tokens.shape, state.used + tokens.shape[1]
        check_capacity(state, count)
        own = _grown(state.own, used, state.capacity)
        slots = Range(count, state.used)
        phase = slots.phases(tokens.device)
        x = self._embed(tokens, phase)
        mechanism = _mechanism(self.decoder)
        plain = isinstance(self.target_mask, Causal) and mechanism.grows
        mask = Full() if plain and count == 1 else self.target_mask  # the newest token sees all others
        plan = mechanism.plan(mask, slots, Range(used) if state.used else None, like=x)
        context = AttentionContext(plan, self.position.rotation(phase), DecodeInput(None, used))
        queries = rows // shared.lengths.shape[0] * count
        plan = self._cross_plan(queries, shared.lengths, shared.layers[0].k.shape[2], like=x)
        contexts = [
            context._replace(cache=cache, cross=CrossAttentionContext(plan, projected))
            for cache, projected in zip(own, shared.layers, strict=True)
        ]
        return self.head(self.norm(self.decoder(x, contexts))), state._replace(own=own, used=used)

    def head(self, x: Tensor) -> Tensor:
        return self.unembed(x / math.sqrt(self.config.width) if self.config.scaled_head else x)

    def _embed(self, tokens: Tensor, phase: Tensor) -> Tensor:
        x = self.position.embed(self.embed(tokens) * self.token_scale, phase)
        return self.drop(self.norm_embed(x))

    def _cross_plan(self, queries: int, lengths: Tensor, places: int, *, like: Tensor) -> Plan:
        """One plan for every cross-attention, from ``queries`` to the real tokens of the source."""
        mechanism = _cross(self.decoder.layers[0]).mechanism
        return mechanism.plan(self.cross_mask, Range(queries), Padded(lengths, places), like=like)


def _mechanism(stack: Stack) -> Mechanism:
    """The mechanism of the first block; it plans for all of them."""
    return stack.layers[0].attention.mechanism


def _cross(block: Block) -> CrossAttention:
    return cast(CrossAttention, block.cross)  # decoder blocks have one


def _grown(own: tuple[Cache, ...], used: int, capacity: int) -> tuple[Cache, ...]:
    """KV caches with room for at least ``used`` tokens; the same ones where they are large enough."""
    size = min(capacity, -(-used // ROOM) * ROOM)
    return tuple(
        cache.grown(size) if isinstance(cache, KVCache) and cache.k.shape[2] < used else cache for cache in own
    )
