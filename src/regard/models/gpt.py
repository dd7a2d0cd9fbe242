"""GPT: a decoder-only Transformer (Radford et al. 2019), assembled from exchangeable parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import (
    AnySlots,
    AttentionConfig,
    CacheIndex,
    Causal,
    DecodeInput,
    Mask,
    Mechanism,
    Padded,
    Plan,
    Range,
    Slots,
    SoftmaxConfig,
)
from regard.attention.cache import SLACK
from regard.config import option
from regard.models.base import LanguageModel, State
from regard.models.config import REDUCED
from regard.models.device import parameter_device
from regard.models.parts import AttentionModelConfig, check_length
from regard.models.state import check_capacity
from regard.nn.attention import AttentionContext, CrossAttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.embedding import NGrams
from regard.nn.init import damp_logits, initialize, normal
from regard.nn.linear import Linear

T = TypeVar("T")


@dataclass(frozen=True)
class GPTConfig(AttentionModelConfig, kind="gpt"):
    """Sizes and parts of a GPT. The defaults are a 4-layer character model."""

    cap: float | None = option(None, "soft cap on the logits: cap * tanh(logit / cap)", above=0)
    ngrams: int = option(1, "embed the last n tokens together (1: only the token itself)", least=1)
    buckets: int = option(2**15, "rows of each n-gram table", least=1)
    global_every: int = option(0, "every n-th layer has plain attention over everything (0: none)", least=0)
    repeat: int = option(1, "run each block n times in a row, with the same weights", least=1)

    def check(self) -> None:
        super().check()
        if self.layers % self.repeat:
            raise ValueError(f"{self.layers} layers are not a multiple of repeat = {self.repeat}; repeat = 1 would do")
        if self.repeat > 1 and self.global_every > 1:
            raise ValueError("a block that is repeated has one attention; set global_every = 0 or repeat = 1")

    def make(self) -> GPT:
        return GPT(self)

    def reduced(self) -> Self:
        period = max(self.repeat, self.global_every, 1)  # two periods have a layer of each kind
        layers = min(self.layers, max(REDUCED.layers, 2 * period if period > 1 else 0))
        return replace(super().reduced(), layers=layers, buckets=min(self.buckets, REDUCED.buckets))

    def without_positions(self) -> Self | None:
        recurrent = all(attention.layer is not None for attention in self.attentions())
        return None if recurrent else super().without_positions()  # they read tokens in order in any case

    def attentions(self) -> list[AttentionConfig]:
        """The attention of each layer."""
        wide = [bool(self.global_every) and (i + 1) % self.global_every == 0 for i in range(self.layers)]
        return [SoftmaxConfig() if everything else self.attention for everything in wide]


class GPT(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    config: GPTConfig
    blocks: Stack

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        c, attentions = config, config.attentions()
        self.position = c.build_position()
        self.limit = self.position.limit
        token_width, self.token_scale = self.position.token_width(c.width), self.position.token_scale(c.width)
        self.embed = nn.Embedding(c.vocabulary, token_width)
        self.ngrams = NGrams(c.vocabulary, c.ngrams, c.buckets, token_width)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = c.block.stack(
            (c.build_block(attentions[i], self.position) for i in range(0, c.layers, c.repeat)), c.repeat
        )
        self.compilable = self.blocks.compilable
        self.positional = c.positional or any(mechanism.recurrent for _, mechanism in self.mechanisms())
        self.norm = c.build_final_norm()
        self.unembed = Linear(c.width, c.vocabulary, bias=False)
        if c.tied:
            self.unembed.weight = self.embed.weight
        distinct = list(dict.fromkeys(attentions))  # each gets one plan per forward pass
        self.masks: list[Mask] = [Causal() & attention.pattern() for attention in distinct]
        self.mask_of_layer = [distinct.index(attention) for attention in attentions]
        self.reset()

    def reset(self) -> None:
        """GPT-2's initial weights: normal with deviation 0.02, residual branches scaled down with depth, or zero."""
        initialize(self, normal(0.02), normal(0.02))
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * self.config.layers) ** -0.5)
        damp_logits(self.config.last_norm(self.blocks, self.norm), self.config.width, 0.02)

    @property
    def layer_masks(self) -> list[Mask]:
        masks = zip(self.blocks.layers, self._of_layers(self.masks), strict=True)
        return [mask for block, mask in masks if not block.attention.mechanism.recurrent]

    @property
    def cache_per_token(self) -> int:
        c = self.config
        return len(self.layer_masks) * c.projection.cache_width(c.width, c.heads, c.key_heads)

    def features(
        self, tokens: Tensor, slots: AnySlots | None = None, cross: CrossAttentionContext | None = None
    ) -> Tensor:
        """Everything but the head: [B, N, C]. ``slots`` describes padding or packing. Default: one unpadded row.

        ``cross``: what blocks with cross-attention read.
        """
        slots = Range(tokens.shape[1]) if slots is None else slots
        check_length(self.position, slots.length)
        phase = slots.phases(tokens.device)
        before = self.ngrams.longest - 1
        x = self._embed(tokens, F.pad(tokens, (before, 0)) if before else tokens, phase)
        rotation = self.position.rotation(phase)
        plans = [self._mechanism(i).plan(mask.bind(tokens, phase), slots, like=x) for i, mask in enumerate(self.masks)]
        contexts = self._of_layers([AttentionContext(plan, rotation, cross=cross) for plan in plans])
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def head(self, x: Tensor) -> Tensor:
        """Features to logits."""
        logits, cap = self.unembed(x), self.config.cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty KV cache for ``batch`` rows of up to ``capacity`` tokens."""
        check_length(self.position, capacity)
        device = parameter_device(self)
        indices = tuple(CacheIndex.start(batch, capacity, mask, device) for mask in self.masks)
        sizes = self._of_layers([index.size for index in indices])
        layers = tuple(
            block.attention.start(batch, size) for block, size in zip(self.blocks.layers, sizes, strict=True)
        )
        position = torch.zeros(batch, dtype=torch.long, device=device)
        recent = position.new_zeros(batch, self.ngrams.longest - 1)
        return State(position, layers, indices, recent, capacity, 0, fixed)

    def consume(
        self,
        tokens: Tensor,
        state: State,
        lengths: Tensor | None,
        cross: Sequence[CrossAttentionContext | None] = (),
    ) -> tuple[Tensor, State]:
        """As ``LanguageModel.consume``; ``cross``: what each layer with cross-attention reads."""
        count = tokens.shape[1]
        check_capacity(state, count)
        assert state.recent is not None
        rolling = any(index.size < (state.capacity or 0) for index in state.cache_indices)
        if rolling and state.used and count > SLACK:
            return self._in_pieces(tokens, state, lengths)
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
        rotation = self.position.rotation(phase)
        plans = [self._plan(i, tokens, queries, state, lengths, like=x) for i in range(len(self.masks))]
        shared = self._of_layers([AttentionContext(plan, rotation, decode) for plan, decode in plans])
        own = zip(shared, state.layers, cross or [None] * len(shared), strict=True)
        x = self.blocks(x, [one._replace(cache=cache, cross=memory) for one, cache, memory in own])
        newest = real[:, None] + torch.arange(state.recent.shape[1], device=tokens.device)
        state.recent.copy_(earlier.gather(1, newest))
        state.position.add_(real)
        return self.norm(x), state._replace(used=state.used + count)

    def _plan(
        self, i: int, tokens: Tensor, queries: AnySlots, state: State, lengths: Tensor | None, *, like: Tensor
    ) -> tuple[Plan, DecodeInput]:
        """For the layers with mask ``i`` in one decoding step: the plan, and where keys and values are cached."""
        index, first, count = state.cache_indices[i], state.used == 0, tokens.shape[1]
        write = index.allocate(state.position, count, lengths, first)
        used = index.size if state.fixed else min(index.size, state.used + count)
        mask = index.bind(self.masks[i], tokens, state.position, lengths)
        plan = self._mechanism(i).plan(mask, queries, None if first else index.slots(used), like=like)
        return plan, DecodeInput(write, used)

    def _in_pieces(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Many tokens into a rolling cache, in pieces small enough to overwrite only keys that no query sees."""
        features = []
        for start, piece in zip(range(0, tokens.shape[1], SLACK), tokens.split(SLACK, dim=1), strict=True):
            real = None if lengths is None else (lengths - start).clamp(0, piece.shape[1])
            x, state = self.consume(piece, state, real)
            features.append(x)
        return torch.cat(features, dim=1), state

    def _embed(self, tokens: Tensor, earlier: Tensor, phase: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.ngrams.longest > 1:
            x = x + self.ngrams(earlier, phase)
        return self.drop(self.position.embed(x if self.token_scale == 1 else x * self.token_scale, phase))

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks.layers)

    def _of_layers(self, of_masks: Sequence[T]) -> list[T]:
        """From one value per mask to one per layer."""
        return [of_masks[i] for i in self.mask_of_layer]

    def _mechanism(self, mask: int) -> Mechanism:
        """The mechanism of the first layer with this mask; it plans for all of them."""
        return self.blocks.layers[self.mask_of_layer.index(mask)].attention.mechanism
