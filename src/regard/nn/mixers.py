"""Layers in the place of self-attention: state-space models and minimal gated RNNs (``mechanisms/recurrence.py``).

    u, g = W x            two or more streams of inner channels
    u = convolution(u)    over the last few tokens, each channel by itself; optional
    y = mechanism(u)
    out = W_o (y silu(g))   the gate is optional

With the convolution and the gate this is Mamba's block (Gu and Dao 2023, fig. 3). Positions do not act on it, nor does
dropout of attention weights, so that in a hybrid both are those of the attention layers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import (
    S4D,
    AttentionConfig,
    GatedMean,
    LayerSpec,
    Mechanism,
    Packed,
    Recurrence,
    RecurrenceState,
    SelectiveScan,
)
from regard.attention.mechanisms.recurrence import Boundaries
from regard.attention.mechanisms.statespace import Spectrum
from regard.config import option
from regard.nn.attention import AttentionContext, AttentionSizes, SelfAttention
from regard.nn.linear import Linear


class MixerState(NamedTuple):
    """The state of one layer while decoding."""

    recent: Tensor  # [B, kernel - 1, C], the latest inputs of the convolution
    mechanism: RecurrenceState


class Mixer(SelfAttention):
    """Base class. A subclass makes queries, keys and values of its ``streams`` [B, N, streams C]."""

    streams: ClassVar[int] = 1

    def __init__(self, sizes: AttentionSizes, mechanism: Recurrence, kernel: int, gate: bool):
        nn.Module.__init__(self)
        self.heads = self.kv_heads = mechanism.heads
        self.head_width, self.channels = mechanism.width, mechanism.channels
        self.inputs = Linear(sizes.width, *[self.channels] * (self.streams + gate), bias=sizes.bias)
        mixed = self.streams * self.channels
        self.convolution = nn.Conv1d(mixed, mixed, kernel, groups=mixed) if kernel else None
        self.gate = gate
        self.mechanism = mechanism
        self.out = Linear(self.channels, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        u, *gate = self.inputs(x).split([self.streams * self.channels, *[self.channels] * self.gate], dim=-1)
        state = cast(MixerState | None, context.cache)
        if self.convolution is not None:
            u = F.silu(self._convolve(u, self.convolution, context, state))
        own = context if state is None else context._replace(cache=state.mechanism)
        y = self._attend(*self.split(u), own).transpose(1, 2).flatten(2)  # [B, H, N, D] to [B, N, C]
        return self.out(y * F.silu(gate[0]) if gate else y)

    def split(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, N, ·] of the mechanism."""
        v = self.by_head(u)
        return v, v, v

    def by_head(self, x: Tensor) -> Tensor:
        """[B, N, C] to [B, H, N, D]."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def _convolve(self, u: Tensor, taps: nn.Conv1d, context: AttentionContext, state: MixerState | None) -> Tensor:
        """Σ_j w_j u_{t-j} + b per channel, within documents; ``state.recent`` is updated."""
        before, count = taps.kernel_size[0] - 1, u.shape[1]
        slots = context.plan.queries
        earlier = F.pad(u, (0, 0, before, 0)) if state is None else torch.cat((state.recent.to(u.dtype), u), dim=1)
        weight, y = taps.weight[:, 0].to(u.dtype), cast(Tensor, taps.bias).to(u.dtype)
        for far in range(before + 1):
            part = earlier[:, before - far : before - far + count]
            if far and isinstance(slots, Packed):
                part = part * (slots.phase >= far)[:, :, None]
            y = torch.addcmul(y, part, weight[:, before - far])
        if state is not None:
            real = Boundaries.of(slots).real
            end = torch.full((len(u), 1), count, device=u.device) if real is None else real.sum(1, keepdim=True)
            latest = (end + torch.arange(before, device=u.device))[:, :, None].expand(-1, -1, u.shape[2])
            state.recent.copy_(earlier.gather(1, latest))
        return y

    def start(self, batch: int, size: int) -> Any:
        """An empty state; its size does not depend on the length of the text."""
        before = 0 if self.convolution is None else self.convolution.kernel_size[0] - 1
        recent = self.out.weight.new_zeros(batch, before, self.streams * self.channels)
        return MixerState(recent, self.mechanism.start(batch, self.heads, size, self.head_width, self.out.weight))


class SelectiveMixer(Mixer):
    """Step sizes through a low-rank projection (Gu and Dao 2023, sec. 3.6)."""

    def __init__(self, sizes: AttentionSizes, mechanism: Recurrence, kernel: int, gate: bool, rank: int):
        super().__init__(sizes, mechanism, kernel, gate)
        self.of_input = Linear(self.channels, rank, mechanism.state, mechanism.state, bias=False)
        self.step_up = Linear(rank, self.channels, bias=False)

    def split(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        step, b, c = self.of_input(u).split(self.of_input.parts, dim=-1)
        b, c = (x[:, None].expand(-1, self.heads, -1, -1) for x in (b, c))
        return c, torch.cat((b, self.by_head(self.step_up(step))), dim=-1), self.by_head(u)


class MinGRU(Mixer):
    """z = σ(W_z x) (Feng et al. 2024, sec. 3.1). -log(1 - σ(x)) = softplus(x)."""

    streams = 2

    def split(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, z = (self.by_head(x) for x in u.chunk(2, dim=-1))
        decay = F.softplus(z)
        return decay, decay, v


class MinLSTM(Mixer):
    """f = σ(W_f x), i = σ(W_i x), divided by their sum (Feng et al. 2024, sec. 3.2): z = i / (f + i)."""

    streams = 3

    def split(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, f, i = (self.by_head(x) for x in u.chunk(3, dim=-1))
        decay = F.softplus(F.logsigmoid(i) - F.logsigmoid(f))
        return decay, decay, v


@dataclass(frozen=True)
class MixerConfig(AttentionConfig):
    """Base class of the configs of these layers."""

    mixer: ClassVar[type[Mixer]] = Mixer
    expand: float = option(1.0, "inner channels of the layer over the model's width", above=0)
    kernel: int = option(4, "taps of the convolution before it (0: none)", least=0)
    gate: bool = option(True, "multiply the output by silu of a projection of the input")

    @property
    def layer(self) -> Any:
        return self.build

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> Mixer:
        """The layer around the mechanism."""
        return self.mixer(sizes, cast(Recurrence, mechanism), self.kernel, self.gate)

    def inner(self, spec: LayerSpec) -> tuple[int, int]:
        """Heads, and channels of each."""
        return spec.heads, max(1, round(self.expand * spec.head_width))


@dataclass(frozen=True)
class S4DConfig(MixerConfig, kind="s4d"):
    """A diagonal state-space model in place of attention: a long convolution (Gu et al. 2022)."""

    state: int = option(64, "numbers in the state of each channel")
    spectrum: Spectrum = option("lin", "initial frequencies: lin (S4D-Lin) or inv (S4D-Inv)")

    def check(self) -> None:
        super().check()
        if self.state < 2 or self.state % 2:
            raise ValueError(f"state must be an even number from 2 on, not {self.state}: its numbers are complex pairs")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return S4D(*self.inner(spec), self.state, self.spectrum)


@dataclass(frozen=True)
class MambaConfig(MixerConfig, kind="mamba"):
    """A selective state-space model in place of attention (Gu and Dao 2023)."""

    expand: float = option(2.0, "inner channels of the layer over the model's width")
    state: int = option(16, "numbers in the state of each channel", least=1)
    rank: int | None = option(None, "rank of the projection to step sizes (default: width / 16)", least=1)

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return SelectiveScan(*self.inner(spec), self.state)

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> Mixer:
        rank = -(-sizes.width // 16) if self.rank is None else self.rank
        return SelectiveMixer(sizes, cast(Recurrence, mechanism), self.kernel, self.gate, rank)


@dataclass(frozen=True)
class MinGRUConfig(MixerConfig, kind="mingru"):
    """A minimal GRU in place of attention: its gate depends on the token alone (Feng et al. 2024)."""

    mixer = MinGRU

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return GatedMean(*self.inner(spec))


@dataclass(frozen=True)
class MinLSTMConfig(MinGRUConfig, kind="minlstm"):
    """A minimal LSTM in place of attention: forget and input gate, divided by their sum (Feng et al. 2024)."""

    mixer = MinLSTM
