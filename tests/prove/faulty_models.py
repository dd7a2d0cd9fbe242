"""Faults in models of this library: each overrides one method of a sound model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention import AnySlots, Call, Causal, Out, Packed, Plan, Slots, Window, WindowConfig
from regard.attention.backends.reference import Reference
from regard.attention.slots import EMPTY
from regard.models import GPT, ConvolutionConfig, GPTConfig, State
from regard.models.convolution import Convolution
from regard.nn.convolution import CausalConvolution


class Merged(GPT):
    """A packed row is taken for one document: positions restart, but the mask knows no boundaries."""

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Packed):
            order = torch.arange(slots.length)[None].expand_as(slots.segment)
            slots = Slots(order, slots.segment.clamp(max=0), slots.phase)
        return super().features(tokens, slots)


class OneAhead(GPT):
    """After the first call the counter is one too far: the prompt's length, and one for the token it gave."""

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        first = state.used == 0
        logits, state = super().step(tokens, state, lengths, last=last)
        if first:
            state.position.add_(1)
        return logits, state


class UpperLeft(GPT):
    """Several tokens after a cache: the causal square is laid into the upper left corner, not into the lower right.

    The first of them then sees one key, the second two: so does ``is_causal=True`` of PyTorch's fused attention.
    One token at a time is right, and so is a prompt.
    """

    def _plan(self, i: int, tokens: Tensor, queries: Any, state: State, lengths: Any, *, like: Tensor) -> Any:
        plan, write = super()._plan(i, tokens, queries, state, lengths, like=like)
        if not state.used or tokens.shape[1] == 1:
            return plan, write
        moved = queries._replace(order=queries.order - state.position[:, None])
        return self._mechanism(i).plan(self.masks[i], moved, plan.keys, like=like), write


class WiderOnceRolled(GPT):
    """Once the buffer of a window rolls, the place about to be overwritten is still seen: one token too many."""

    def _plan(self, i: int, tokens: Tensor, queries: Any, state: State, lengths: Any, *, like: Tensor) -> Any:
        plan, write = super()._plan(i, tokens, queries, state, lengths, like=like)
        if state.used < state.cache_indices[i].size:
            return plan, write
        assert isinstance(self.config.attention, WindowConfig)
        wider = Causal() & Window(self.config.attention.size + 1)
        return self._mechanism(i).plan(wider, queries, plan.keys, like=like), write


class TiledHeads(Reference):
    """A kernel that lays shared key heads out as 0 1 0 1 where they belong as 0 0 1 1 (Ainslie et al. 2023, fig. 2)."""

    name = "tiled"

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        shared = call.q.shape[1] // call.k.shape[1]
        return super().run(call._replace(k=call.k.repeat(1, shared, 1, 1), v=call.v.repeat(1, shared, 1, 1)))


@dataclass(frozen=True)
class TiledConfig(GPTConfig, kind="test-tiled"):
    """A GPT on that kernel."""

    def make(self) -> GPT:
        return Tiled(self)


class Tiled(GPT):
    def __init__(self, config: GPTConfig):
        super().__init__(config)
        for block in self.blocks.layers:
            block.attention.mechanism.backend = TiledHeads()  # type: ignore[assignment]


@dataclass(frozen=True)
class ForgetfulConfig(GPTConfig, kind="test-forgetful"):
    """A GPT whose logits are corrected by a running statistic; ``kept``: it is part of a checkpoint."""

    kept: bool = False

    def make(self) -> GPT:
        return Forgetful(self)


class Forgetful(GPT):
    """Unless it is kept, the statistic is a buffer that no checkpoint holds: after a reload it is zero."""

    correction: Tensor  # [V]

    def __init__(self, config: ForgetfulConfig):
        super().__init__(config)
        self.register_buffer("correction", torch.zeros(config.vocabulary), persistent=config.kept)

    def head(self, x: Tensor) -> Tensor:
        return super().head(x) + self.correction


class Uncapped(GPT):
    """A shorter way for the compiler: it leaves out the soft cap on the logits."""

    def head(self, x: Tensor) -> Tensor:
        return self.unembed(x) if torch.compiler.is_compiling() else super().head(x)


class GuessedBoundaries(GPT):
    """Where a packed document begins is guessed from the positions: there they fall.

    After a document of one token they do not, since 0 follows 0: the next document sees it.
    """

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Packed):
            falls = slots.phase.diff(dim=1, prepend=slots.phase[:, :1]) < 0
            segment = torch.where(slots.segment == EMPTY, EMPTY, falls.cumsum(1))
            slots = Slots(torch.arange(slots.length)[None].expand_as(segment), segment, slots.phase)
        return super().features(tokens, slots)


class Wiped(CausalConvolution):
    """Several tokens at once are right themselves, but what is kept of them is filled up with zeros from the left.

    If they are fewer than the convolution reaches back, what came before them is forgotten: those after them miss it.
    """

    def step(self, x: Tensor, past: Tensor, position: Tensor, lengths: Tensor | None = None) -> Tensor:
        out = super().step(x, past, position, lengths)
        if x.shape[1] > 1:
            real = torch.full_like(position, x.shape[1]) if lengths is None else lengths
            since = real[:, None] + torch.arange(-self.reach, 0)  # [B, reach], counted from the first of x
            places = self._places(position[:, None] + since)
            past.scatter_(1, places, past.gather(1, places) * (since >= 0)[:, :, None])
        return out


class WipedByShortPieces(Convolution):
    def __init__(self, config: ConvolutionConfig):
        super().__init__(config)
        for block, dilation in zip(self._blocks(), config.dilations(), strict=True):
            old = block.convolution
            block.convolution = Wiped(old.inputs, old.mix.out_features, kernel=config.kernel, dilation=dilation)


class Unscaled(torch.autograd.Function):
    """Nothing forward; backward the factor of the scores is taken out of the gradient."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return k.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.factor, None


class UnscaledKeys(Reference):
    """A kernel with a backward pass written by hand: it scales the gradient of the queries and forgets the keys'."""

    name = "unscaled"

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        return super().run(call._replace(k=Unscaled.apply(call.k, call.factor)))


@dataclass(frozen=True)
class UnscaledConfig(GPTConfig, kind="test-unscaled"):
    """A GPT on that kernel."""

    def make(self) -> GPT:
        return ByHand(self)


class ByHand(GPT):
    def __init__(self, config: GPTConfig):
        super().__init__(config)
        for block in self.blocks.layers:
            block.attention.mechanism.backend = UnscaledKeys()  # type: ignore[assignment]
