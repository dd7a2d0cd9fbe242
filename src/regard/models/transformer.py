"""The Transformer: an encoder reads a sentence, a decoder writes another (Vaswani et al. 2017, fig. 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention import BACKENDS, Bias, Causal, DecodeInput, Full, KVCache, Mask, Padded, Plan, Range, Softmax
from regard.config import option
from regard.errors import UserError
from regard.models.base import (
    REDUCED,
    ModelConfig,
    Seq2SeqModel,
    Seq2SeqState,
    check_capacity,
    check_dropouts,
    check_heads,
    check_sizes,
)
from regard.nn import (
    AttentionContext,
    Block,
    BlockConfig,
    FeedForwardConfig,
    LayerNormConfig,
    Linear,
    NoPositionConfig,
    NormConfig,
    Position,
    PositionConfig,
    PreNormConfig,
    ReLUConfig,
    SinusoidalConfig,
)
from regard.nn.attention import SELF_ATTENTION
from regard.nn.cross_attention import CROSS_ATTENTION, CrossAttention, CrossAttentionContext
from regard.nn.dropout import Dropout
from regard.nn.silu import SiLUConfig as SiLUConfig  # a kind is known once its file was read

RESIDUAL = ("attention.out.weight", "cross.out.weight", "feedforward.down.weight")  # what residual branches end with
ROOM = 8  # a state's buffers grow by so many places: to reorder beams is to copy them, empty places included


@dataclass(frozen=True)
class TransformerConfig(ModelConfig, kind="transformer"):
    """Sizes and parts of an encoder-decoder. The defaults are a small one that a CPU trains in minutes."""

    vocabulary: int = option(8000, "how many tokens there are")
    source_vocabulary: int | None = option(None, "tokens of the source language, if it has its own")
    context: int = option(128, "the longest sentence, in tokens")
    layers: int = option(3, "blocks of the encoder")
    decoder_layers: int | None = option(None, "blocks of the decoder (default: as many as the encoder's)")
    heads: int = option(4, "heads of every attention")
    width: int = option(256, "model width")
    dropout: float = option(0.1, "dropout on embeddings, attention and residual branches")
    attention_dropout: float | None = option(None, "dropout on attention weights, if it differs from the rest")
    tied: bool = option(True, "share the embedding with the output head, and with the source's if it has no own tokens")
    scaled: bool = option(True, "multiply embeddings by the root of the width")
    bias: bool = option(False, "biases in linear layers")
    head_bias: bool = option(False, "a bias on the logits")
    qk_norm: bool = option(False, "normalise queries and keys per head")
    memory: Literal["last", "same"] = option(
        "last", "a decoder layer reads the encoder's last layer, or its own number"
    )
    projection: Literal["separate", "shared"] = option("separate", "a matrix each for queries, keys, values, or one")
    backend: str = option("auto", "attention backend: auto, sdpa, banded, flex, reference")
    zero_init: bool = option(False, "start residual branches at zero rather than small")
    norm: NormConfig = field(default_factory=LayerNormConfig)
    position: PositionConfig = field(default_factory=SinusoidalConfig)
    feedforward: FeedForwardConfig = field(default_factory=ReLUConfig)
    block: BlockConfig = field(default_factory=PreNormConfig)

    def check(self) -> None:
        check_sizes(self, "vocabulary", "source_vocabulary", "context", "layers", "decoder_layers", "heads", "width")
        check_heads(self.width, self.heads)
        check_dropouts(self, "dropout", "attention_dropout")
        if self.memory == "same" and self.depth != self.layers:
            raise ValueError(
                f"with memory = same, decoder layer i reads encoder layer i, but there are {self.layers} and "
                f"{self.depth} of them; set decoder_layers = {self.layers}"
            )
        if self.backend not in ("auto", *BACKENDS):
            raise ValueError(f"there is no backend {self.backend!r}; choose from auto, {', '.join(BACKENDS)}")

    @property
    def depth(self) -> int:
        """How many blocks the decoder has."""
        return self.decoder_layers or self.layers

    def reduced(self) -> Self:
        layers = min(self.layers, REDUCED.layers)
        deeper = self.decoder_layers and (layers if self.decoder_layers == self.layers else layers + 1)
        return self.resized(layers=layers, decoder_layers=deeper, heads=min(self.heads, REDUCED.heads))

    def make(self) -> Transformer:
        return Transformer(self)


class EncodedSource(NamedTuple):
    """What all beams of a sentence share: how long it is, and what each decoder layer made of its memory."""

    lengths: Tensor  # [B]
    layers: tuple[KVCache, ...]  # [B, H, S, D] each


class Transformer(Seq2SeqModel):
    """Source [B, S] and target inputs [B, T] to logits [B, T, V]."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        c = config
        self.position_source, self.position = self._position(causal=False), self._position()
        self.limit, self.positional = self.position.limit, not isinstance(c.position, NoPositionConfig)
        self.masks = [Full(), Causal()]
        narrow = self.position.token_width(c.width)
        if c.tied and narrow != c.width:
            raise UserError("concatenated positions leave the embedding narrower than the head; set tied = false")
        self.source_vocabulary = c.source_vocabulary or c.vocabulary
        self.embed_source = nn.Embedding(self.source_vocabulary, narrow)
        self.embed = nn.Embedding(c.vocabulary, narrow)
        self.drop = Dropout(c.dropout) if c.dropout else nn.Identity()
        self.encoder = nn.ModuleList(self._block() for _ in range(c.layers))
        self.norm_source = c.norm.build(c.width) if c.block.final_norm else nn.Identity()
        self.decoder = nn.ModuleList(self._block(reads=True) for _ in range(c.depth))
        self.norm = c.norm.build(c.width) if c.block.final_norm else nn.Identity()
        self.unembed = Linear(c.width, c.vocabulary, bias=c.head_bias)
        if c.tied:
            self.unembed.weight = self.embed.weight
            if c.source_vocabulary is None:
                self.embed_source.weight = self.embed.weight
        self.reset()

    @property
    def cache_per_token(self) -> int:
        """Of one source and one target token together."""
        return 4 * self.config.depth * self.config.width

    def _position(self, *, causal: bool = True) -> Position:
        c = self.config
        return c.position.build(width=c.width, head_width=c.width // c.heads, context=c.context, causal=causal)

    def _block(self, reads: bool = False) -> Block:
        c, kind = self.config, self.config.projection
        position = self.position if reads else self.position_source
        own, other = self._mechanism(position.bias()), self._mechanism()
        attention = SELF_ATTENTION[kind](c.width, c.heads, c.heads, own, bias=c.bias, qk_norm=c.qk_norm)
        cross = CROSS_ATTENTION[kind](c.width, c.heads, other, bias=c.bias, qk_norm=c.qk_norm) if reads else None
        feedforward, norms = c.feedforward.build(c.width, bias=c.bias), [c.norm.build(c.width) for _ in range(3)]
        named = {"cross": cross, "norm_cross": norms[2] if reads else None}
        return c.block.build(attention, feedforward, *norms[:2], dropout=c.dropout, **named)

    def _mechanism(self, bias: Bias | None = None) -> Softmax:
        c = self.config
        dropout = c.dropout if c.attention_dropout is None else c.attention_dropout
        return Softmax(bias=bias, dropout=dropout, backend=c.backend)

    @property
    def blocks(self) -> list[Block]:  # type: ignore[override]
        """Every block, the encoder's first."""
        return [*cast(Sequence[Block], self.encoder), *cast(Sequence[Block], self.decoder)]

    def residual_blocks(self) -> list[nn.Module]:
        """The decoder's blocks."""
        return list(self.decoder)

    def reset(self) -> None:
        """Xavier's uniform weights (Glorot & Bengio 2010), as the paper's code has them; biases 0, gains 1.

        Where nothing normalises the residual path, its branches shrink with depth, as GPT-2's. Scaled embeddings begin
        with length one, so that they have unit variance after the scaling, and logits when they serve as the head.
        """
        c = self.config
        for module in self.modules():
            if isinstance(module, Linear):
                for part in module.weight.detach().split(list(module.parts) or module.out_features):
                    nn.init.xavier_uniform_(part)
        gains = () if c.block.ends == BlockConfig.ends else c.block.ends  # a branch may end in a norm
        ends = gains if any(name.endswith(gains) for name, _ in self.named_parameters()) else RESIDUAL
        for name, parameter in self.named_parameters():
            if name.startswith(("embed", "unembed", "position")) and parameter.ndim == 2:
                nn.init.normal_(parameter, std=c.width**-0.5 if c.scaled else 0.02)
            elif name.endswith(ends) and (c.zero_init or c.block.final_norm):
                if parameter.ndim == 1:
                    nn.init.ones_(parameter)
                branches = 2 * c.layers if name.startswith("encoder") else 3 * c.depth
                parameter.detach().mul_(0.0 if c.zero_init else branches**-0.5)
            elif parameter.ndim < 2:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Everything but the head, [B, T, C]: each place of the target knows what stands before it, and the source.

        Padding stands last in the target's rows, where a causal decoder does not see it: it needs no lengths.
        """
        memories = self.encode(source, source_lengths)
        slots = Range(self._checked(inputs.shape[1], "a translation"))
        phase = slots.phases(inputs.device)
        x = self._embed(self.embed, self.position, inputs, phase)
        context = AttentionContext(self._plan(self.decoder, Causal(), slots, like=x), self.position.turn(phase))
        plan = self._sight(inputs.shape[1], source_lengths, memories[0].shape[1], like=x)
        for block, memory in zip(self.decoder, memories, strict=True):
            x = self._through(block, x, context, CrossAttentionContext(plan, memory))
        return self.norm(x)

    def encode(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The memory [B, S, C] that each decoder layer reads; what stands at padding means nothing."""
        slots = Padded(lengths, self._checked(source.shape[1], "a source"))
        phase = slots.phases(source.device)
        x = self._embed(self.embed_source, self.position_source, source, phase)
        context = AttentionContext(self._plan(self.encoder, Full(), slots, like=x), self.position_source.turn(phase))
        after = []
        for block in self.encoder:
            x = self._through(block, x, context)
            after.append(x)
        if self.config.memory == "same":
            return [self.norm_source(x) for x in after]
        return [self.norm_source(x)] * self.config.depth

    def head(self, x: Tensor) -> Tensor:
        """Features to logits."""
        return self.unembed(x)

    @torch.no_grad()
    def start(
        self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1
    ) -> Seq2SeqState:
        """Read ``batch`` sources once; then there is room for ``capacity`` tokens in each of ``batch * beams`` rows.

        Row b*beams + j is beam j of source b; the beams read one memory.
        """
        self._checked(capacity, "a translation")
        if source.shape[0] != batch:
            raise ValueError(f"{source.shape[0]} sources were given for a batch of {batch}")
        memories, decoder = self.encode(source, source_lengths), self.blocks[self.config.layers :]
        layers = tuple(_cross(block).project(memory) for block, memory in zip(decoder, memories, strict=True))
        own = tuple(block.attention.start(batch * beams, min(ROOM, capacity)) for block in decoder)
        return Seq2SeqState(EncodedSource(source_lengths, layers), own, capacity)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Take in tokens [B*beams, T] after what ``state`` holds: logits [B*beams, T, V] and the new state."""
        shared, (rows, count), used = state.shared, tokens.shape, state.used + tokens.shape[1]
        check_capacity(state, count)
        own = _grown(state.own, used, state.capacity)
        slots = Range(count, state.used)
        phase = slots.phases(tokens.device)
        x = self._embed(self.embed, self.position, tokens, phase)
        seen = Full() if count == 1 else Causal()  # the newest token sees all that is there
        plan = self._plan(self.decoder, seen, slots, Range(used) if state.used else None, like=x)
        context = AttentionContext(plan, self.position.turn(phase), DecodeInput(None, used))
        queries = rows // shared.lengths.shape[0] * count
        plan = self._sight(queries, shared.lengths, shared.layers[0].k.shape[2], like=x)
        for block, mine, projected in zip(self.decoder, own, shared.layers, strict=True):
            x = block(x, context, mine, CrossAttentionContext(plan, projected=projected))
        return self.head(self.norm(x)), state._replace(own=own, used=used)

    def _embed(self, table: nn.Module, position: Position, tokens: Tensor, phase: Tensor) -> Tensor:
        x = table(tokens)
        return self.drop(position.embed(x * math.sqrt(self.config.width) if self.config.scaled else x, phase))

    def _through(
        self, block: nn.Module, x: Tensor, context: AttentionContext, cross_context: CrossAttentionContext | None = None
    ) -> Tensor:
        if self.checkpointing and self.training:
            return cast(Tensor, checkpoint(block, x, context, None, cross_context, use_reentrant=False))
        return block(x, context, None, cross_context)

    def _plan(
        self, blocks: nn.ModuleList, mask: Mask, queries: Range | Padded, keys: Range | None = None, *, like: Tensor
    ) -> Plan:
        """One plan for the self-attention of a whole stack."""
        return cast(Block, blocks[0]).attention.mechanism.plan(mask, queries, keys, like=like)

    def _sight(self, queries: int, lengths: Tensor, places: int, *, like: Tensor) -> Plan:
        """One plan for every cross-attention: so many queries over the source's real places."""
        return _cross(self.decoder[0]).mechanism.plan(Full(), Range(queries), Padded(lengths, places), like=like)

    def _checked(self, length: int, what: str) -> int:
        limit = self.position.limit
        if limit is not None and length > limit:
            raise UserError(
                f"{what} of {length} tokens was given, but the learned positions end at {limit}; shorten it"
            )
        return length


def _cross(block: nn.Module) -> CrossAttention:
    return cast(CrossAttention, block.cross)  # decoder blocks have one


def _grown(own: tuple[KVCache, ...], used: int, capacity: int) -> tuple[KVCache, ...]:
    """Buffers with at least ``used`` places, the old content first; the same ones where they are large enough."""
    size = own[0].k.shape[2]
    if used <= size:
        return own
    wanted = min(capacity, -(-used // ROOM) * ROOM)

    def grown(x: Tensor) -> Tensor:
        larger = x.new_empty(*x.shape[:2], wanted, x.shape[3])  # nobody reads a place before it is written
        larger[:, :, :size] = x
        return larger

    return tuple(KVCache(grown(k), grown(v)) for k, v in own)
