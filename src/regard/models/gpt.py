"""GPT: a decoder-only Transformer (Radford et al. 2019), assembled from parts that can each be exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import (
    BACKENDS,
    AnySlots,
    AttentionConfig,
    CacheIndex,
    Causal,
    DecodeInput,
    LayerSpec,
    Mask,
    Mechanism,
    Padded,
    Range,
    Slots,
    SoftmaxConfig,
)
from regard.attention.cache import SLACK
from regard.config import option
from regard.errors import UserError
from regard.models.base import (
    REDUCED,
    LanguageModel,
    ModelConfig,
    State,
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
    Linear,
    NGrams,
    NoPositionConfig,
    NormConfig,
    Position,
    PositionConfig,
    PreNormConfig,
    ReLUSquaredConfig,
    RMSNormConfig,
    RotaryConfig,
)
from regard.nn.attention import ProjectionConfig, SeparateConfig
from regard.nn.dropout import Dropout
from regard.nn.packing import latest


@dataclass(frozen=True)
class GPTConfig(ModelConfig, kind="gpt"):
    """LayerSpec and parts of a GPT. The defaults are the 4-layer character model of the lab."""

    vocabulary: int = option(65, "how many tokens there are")
    context: int = option(256, "the longest text seen in training")
    layers: int = option(4, "how many blocks")
    heads: int = option(4, "query heads per layer")
    kv_heads: int | None = option(None, "key/value heads per layer (default: as many as query heads)")
    width: int = option(128, "model width")
    dropout: float = option(0.0, "dropout on embeddings, attention and residual branches")
    attention_dropout: float | None = option(None, "dropout on attention weights, if it differs from the rest")
    tied: bool = option(True, "share the embedding with the output head")
    bias: bool = option(False, "biases in linear layers")
    qk_norm: bool = option(True, "normalise queries and keys per head")
    cap: float | None = option(None, "soft cap on the logits: cap * tanh(logit / cap)")
    ngrams: int = option(1, "embed the last n tokens together (1: only the token itself)")
    buckets: int = option(2**15, "rows of each n-gram table")
    global_every: int = option(0, "every so many layers have plain attention over everything (0: none has)")
    repeat: int = option(1, "so many layers in a row are the same block, weights and all")
    backend: str = option("auto", "attention backend: auto, sdpa, banded, flex, reference")
    zero_init: bool = option(True, "start residual branches at zero rather than small")
    projection: ProjectionConfig = field(default_factory=SeparateConfig)
    attention: AttentionConfig = field(default_factory=SoftmaxConfig)
    norm: NormConfig = field(default_factory=RMSNormConfig)
    position: PositionConfig = field(default_factory=RotaryConfig)
    feedforward: FeedForwardConfig = field(default_factory=ReLUSquaredConfig)
    block: BlockConfig = field(default_factory=PreNormConfig)

    def check(self) -> None:
        check_sizes(self, "vocabulary", "context", "layers", "heads", "width", "ngrams", "buckets", "repeat")
        check_heads(self.width, self.heads)
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly; kv_heads = 1 would do"
            )
        check_dropouts(self, "dropout", "attention_dropout")
        self.attention.check()
        self.projection.fits(self.width, self.heads, self.kv_heads or self.heads)
        if self.global_every < 0:
            raise ValueError(f"global_every must be zero or more, not {self.global_every}")
        if self.layers % self.repeat:
            raise ValueError(f"{self.layers} layers are not a multiple of repeat = {self.repeat}; repeat = 1 would do")
        if self.repeat > 1 and self.global_every > 1:
            raise ValueError("a block that is repeated has one attention; set global_every = 0 or repeat = 1")
        if self.cap is not None and not 0 < self.cap < float("inf"):
            raise ValueError(f"cap must be a finite number above zero, not {self.cap}; none leaves the logits alone")
        if self.backend not in ("auto", *BACKENDS):
            raise ValueError(f"there is no backend {self.backend!r}; choose from auto, {', '.join(BACKENDS)}")

    def make(self) -> GPT:
        return GPT(self)

    def reduced(self) -> Self:
        period = max(self.repeat, self.global_every, 1)  # two periods have a layer of each kind
        heads = min(self.heads, REDUCED.heads)
        return self.resized(
            layers=min(self.layers, max(REDUCED.layers, 2 * period if period > 1 else 0)),
            heads=heads,
            kv_heads=self.kv_heads and max(1, heads * self.kv_heads // self.heads),
            buckets=min(self.buckets, REDUCED.buckets),
        )

    def without_positions(self) -> GPTConfig:
        return replace(self, position=NoPositionConfig())

    def attentions(self) -> list[AttentionConfig]:
        """The attention of each layer."""
        wide = [bool(self.global_every) and (i + 1) % self.global_every == 0 for i in range(self.layers)]
        return [SoftmaxConfig() if everything else self.attention for everything in wide]

    def masks(self) -> list[Mask]:
        """The mask of each layer."""
        return [Causal() & attention.pattern() for attention in self.attentions()]


class GPT(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    config: GPTConfig

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.compilable = config.block.compilable
        width = config.width
        self.position = self._position()
        self.limit = self.position.limit
        self.positional = not isinstance(config.position, NoPositionConfig)
        token_width = self.position.token_width(width)
        if config.tied and token_width != width:
            raise UserError("concatenated positions leave the embedding narrower than the head; set tied = false")
        self.embed = nn.Embedding(config.vocabulary, token_width)
        self.ngrams = NGrams(config.vocabulary, config.ngrams, config.buckets, token_width)
        self.drop = Dropout(config.dropout) if config.dropout else nn.Identity()
        attentions = config.attentions()
        self.blocks = nn.ModuleList(self._block(attentions[i]) for i in range(0, config.layers, config.repeat))
        self.norm = config.norm.build(width) if config.block.final_norm else nn.Identity()
        self.unembed = Linear(width, config.vocabulary, bias=False)
        if config.tied:
            self.unembed.weight = self.embed.weight
        distinct = list(dict.fromkeys(attentions))  # each gets one plan per forward pass
        self.masks: list[Mask] = [Causal() & attention.pattern() for attention in distinct]
        self.mask_of_layer = [distinct.index(attention) for attention in attentions]
        self.reset()

    @property
    def attention_calls(self) -> int:
        return self.config.layers

    @property
    def cache_per_token(self) -> int:
        c = self.config
        return c.layers * c.projection.remembered(c.width, c.heads, c.kv_heads or c.heads)

    def _position(self) -> Position:
        """Positions that turn queries and keys turn as much of them as the projection leaves to them."""
        c, head_width = self.config, self.config.width // self.config.heads
        turned = c.projection.turned_width(c.width, c.heads)
        made = c.position.build(width=c.width, head_width=turned, context=c.context)
        if turned == head_width or type(made).turn is not Position.turn:
            return made
        return c.position.build(width=c.width, head_width=head_width, context=c.context)

    def _block(self, chosen: AttentionConfig) -> nn.Module:
        c, kv_heads = self.config, self.config.kv_heads or self.config.heads
        dropout = c.dropout if c.attention_dropout is None else c.attention_dropout
        bias, head_width = self.position.bias(), c.projection.head_width(c.width, c.heads)
        mechanism = chosen.mechanism(LayerSpec(c.heads, kv_heads, head_width, c.context, bias, dropout, c.backend))
        attention = c.projection.build(c.width, c.heads, kv_heads, mechanism, bias=c.bias, qk_norm=c.qk_norm)
        feedforward = c.feedforward.build(c.width, bias=c.bias)
        return c.block.build(attention, feedforward, c.norm.build(c.width), c.norm.build(c.width), dropout=c.dropout)

    def reset(self) -> None:
        """GPT-2's initial weights: normal with deviation 0.02, residual outputs shrunk with depth or zero."""
        shrink = 0.0 if self.config.zero_init else (2 * self.config.layers) ** -0.5
        ends = self.config.block.ends
        if not any(name.endswith(ends) for name, _ in self.named_parameters()):
            ends = BlockConfig.ends  # a branch that should end in a norm, in a model without norms
        for name, parameter in self.named_parameters():
            end = name.endswith(ends)
            if name.startswith("ngrams."):
                nn.init.zeros_(parameter)  # start as the plain model
            elif end and parameter.ndim == 1:
                nn.init.constant_(parameter, shrink)
            elif end:
                nn.init.normal_(parameter, std=0.02 * shrink)
            elif parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)  # the gains of norms
        for module in self.modules():
            if module is not self and isinstance(reset := getattr(module, "reset", None), Callable):
                reset()  # parts that know better

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Everything but the head: [B, N, C]. ``slots`` tell padding or packing; none means plain rows."""
        slots = Range(tokens.shape[1]) if slots is None else slots
        self._check_length(slots.length)
        phase = slots.phases(tokens.device)
        before = self.ngrams.longest - 1
        x = self._embed(tokens, F.pad(tokens, (before, 0)) if before else tokens, phase)
        plans = [self._mechanism(i).plan(mask.bind(tokens, phase), slots, like=x) for i, mask in enumerate(self.masks)]
        turn = self.position.turn(phase)
        contexts = [AttentionContext(plan, turn) for plan in plans]
        return self.norm(self._through(x, contexts, [None] * self.config.layers, self.checkpointing and self.training))

    def _through(
        self, x: Tensor, contexts: list[AttentionContext], memories: Sequence[Any], recompute: bool = False
    ) -> Tensor:
        of_layers = [contexts[i] for i in self.mask_of_layer]
        return self.config.block.run(self._layers(), x, of_layers, memories, recompute)

    def head(self, x: Tensor) -> Tensor:
        """Features to logits."""
        logits = self.unembed(x)
        cap = self.config.cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty memory for ``batch`` rows of up to ``capacity`` tokens."""
        self._check_length(capacity)
        device = self.embed.weight.device
        caches = tuple(CacheIndex.start(batch, capacity, mask, device) for mask in self.masks)
        sizes = [caches[i].size for i in self.mask_of_layer]
        layers = tuple(block.attention.start(batch, size) for block, size in zip(self._layers(), sizes, strict=True))
        position = torch.zeros(batch, dtype=torch.long, device=device)
        recent = position.new_zeros(batch, self.ngrams.longest - 1)
        return State(position, layers, caches, recent, capacity, 0, fixed)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Take in tokens [B, T] after what ``state`` holds: logits [B, T, V] and the state, updated in place.

        ``lengths`` [B] says how many of the T are real in each row; the others are ignored and leave no trace.
        ``last``: only the logits after each row's last real token, [B, 1, V].
        """
        count = tokens.shape[1]
        check_capacity(state, count)
        assert state.recent is not None
        rolling = any(cache.size < (state.capacity or 0) for cache in state.caches)
        if rolling and state.used and count > SLACK:
            logits, state = self._in_pieces(tokens, state, lengths)
            return (latest(logits, lengths) if last else logits), state
        ahead = torch.arange(count, device=tokens.device)
        real = torch.full_like(state.position, count) if lengths is None else lengths
        if state.used == 0:
            queries: AnySlots = Range(count) if lengths is None else Padded(lengths, count)
        else:
            order = state.position[:, None] + ahead
            queries = Slots(order, torch.where(ahead < real[:, None], 0, -1), order)
        phase = queries.phases(tokens.device)
        earlier = torch.cat((state.recent, tokens), dim=1)
        x = self._embed(tokens, earlier, phase)
        turn = self.position.turn(phase)
        contexts = [self._scene(i, tokens, x, queries, turn, state, lengths) for i in range(len(self.masks))]
        x = self._through(x, contexts, state.layers)
        newest = real[:, None] + torch.arange(state.recent.shape[1], device=tokens.device)
        state.recent.copy_(earlier.gather(1, newest))
        state.position.add_(real)
        if last:  # a head over a large vocabulary costs as much as several blocks
            x = latest(x, lengths)
        return self.head(self.norm(x)), state._replace(used=state.used + count)

    def _scene(
        self, i: int, tokens: Tensor, x: Tensor, queries: AnySlots, turn, state: State, lengths: Tensor | None
    ) -> AttentionContext:
        memory, first = state.caches[i], state.used == 0
        landing = memory.allocate(state.position, x.shape[1], lengths, first)
        used = memory.size if state.fixed else min(memory.size, state.used + x.shape[1])
        mask = memory.bind(self.masks[i], tokens, state.position, lengths)
        plan = self._mechanism(i).plan(mask, queries, None if first else memory.slots(used), like=x)
        return AttentionContext(plan, turn, DecodeInput(landing, used))

    def _in_pieces(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Many tokens into a rolling buffer: at most as many at once as overwrite nothing still seen."""
        logits = []
        for start, piece in zip(range(0, tokens.shape[1], SLACK), tokens.split(SLACK, dim=1), strict=True):
            real = None if lengths is None else (lengths - start).clamp(0, piece.shape[1])
            out, state = self.step(piece, state, real)
            logits.append(out)
        return torch.cat(logits, dim=1), state

    def _embed(self, tokens: Tensor, earlier: Tensor, phase: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.ngrams.longest > 1:
            x = x + self.ngrams(earlier, phase)
        return self.drop(self.position.embed(x, phase))

    def residual_blocks(self) -> list[nn.Module]:
        return list(self._layers())

    def _layers(self) -> list[Block]:
        """The block of each layer."""
        return [cast(Block, block) for block in self.blocks for _ in range(self.config.repeat)]

    def _mechanism(self, mask: int) -> Mechanism:
        """The mechanism of the first layer that has this mask and attention: its kind of work decides the plan."""
        return self._layers()[self.mask_of_layer.index(mask)].attention.mechanism

    def _check_length(self, length: int) -> None:
        limit = self.position.limit
        if limit is not None and length > limit:
            raise UserError(f"{length} tokens were given, but the learned positions end at {limit}; use fewer tokens")
