"""Position encodings.

A position encoding acts in up to three places: on embeddings (``embed``), on queries and keys (``rotation``) and on
scores (``bias``). It takes phases, which restart at each packed document, not the order that masks compare.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.attention import Alibi, Bias, Relative, RelativeBuckets
from regard.config import Choice, option
from regard.errors import UserError
from regard.nn.positions.scaling import NoScalingConfig, ScalingConfig, frequencies


class Rotation(Protocol):
    """A map of queries and keys [B, N, H, D] before they are compared; made once per forward pass."""

    def apply(self, x: Tensor) -> Tensor: ...


class NoRotation(NamedTuple):
    """Leaves queries and keys as they are."""

    def apply(self, x: Tensor) -> Tensor:
        return x


class RotaryRotation(NamedTuple):
    """Rotates each pair (x_i, x_{i+D/2}) by its own angle (Su et al. 2021, eq. 34; halves, not neighbors, paired)."""

    cos: Tensor  # [B|1, N, 1, D/2]
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Position(nn.Module):
    """Base class, and the encoding ``none``: it changes nothing."""

    limit: int | None = None  # the longest input it supports; None: unlimited
    whole: bool = False  # phases must be whole numbers: no fractions for images of another resolution

    def token_width(self, width: int) -> int:
        """The width of token embeddings that gives ``width`` after ``embed``."""
        return width

    def token_scale(self, width: int) -> float:
        """The factor of token embeddings in a language model or an encoder of ``width``."""
        return 1.0

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        """x [B, N, C] combined with its positions, phase [B|1, N]."""
        return x

    def rotation(self, phase: Tensor) -> Rotation:
        """The rotation of queries and keys at ``phase`` [B|1, N]."""
        return NoRotation()

    def bias(self) -> Bias | None:
        """The bias on the scores of one more layer: a new module, or one that all layers share."""
        return None


class Sinusoidal(Position):
    """Fixed waves, added or concatenated (Vaswani et al. 2017, sec. 3.5); PE(p+k) is a rotation of PE(p)."""

    def __init__(self, width: int, *, concatenate: bool = False, base: float = 10_000.0, halves: bool = False):
        super().__init__()
        self.width, self.concatenate, self.base, self.halves = width, concatenate, base, halves

    def token_width(self, width: int) -> int:
        return width - self.width if self.concatenate else width

    def token_scale(self, width: int) -> float:
        """The root of the width (Vaswani et al. 2017, sec. 3.4): waves of height 1 would drown smaller embeddings."""
        return math.sqrt(width)

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        waves = sinusoids(phase, self.width, self.base, halves=self.halves).to(x.dtype)
        if not self.concatenate:
            return x + waves
        return torch.cat((x, waves.expand(*x.shape[:-1], self.width)), dim=-1)


def sinusoids(phase: Tensor, width: int, base: float = 10_000.0, *, halves: bool = False) -> Tensor:
    """[..., width]: sin and cos of phase / base^(2i/width), side by side as the paper writes them.

    ``halves``: all sines, then all cosines.

    >>> sinusoids(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    angle = phase[..., None] * frequencies(width, base, phase.device)
    return torch.stack((angle.sin(), angle.cos()), dim=-2 if halves else -1).flatten(-2)


class Learned(Position):
    """A learned vector per position, up to ``limit`` of them, after ``offset`` vectors that no position has."""

    def __init__(self, limit: int, width: int, offset: int = 0):
        super().__init__()
        self.limit, self.offset = limit, offset
        self.table = nn.Embedding(limit + offset, width)

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        return x + self.table(phase + self.offset if self.offset else phase)


class Rotary(Position):
    """Queries and keys are rotated by an angle proportional to their phase: scores depend on relative phase only.

    ``context`` is the longest sequence in training, which some scalings use.
    """

    def __init__(
        self, head_width: int, *, base: float = 10_000.0, scaling: ScalingConfig | None = None, context: int = 2048
    ):
        super().__init__()
        if head_width % 2:
            raise UserError(
                f"rotary positions rotate pairs: a head width of {head_width} is odd; change width or heads"
            )
        self.head_width, self.base, self.context = head_width, base, context
        self.scaling = NoScalingConfig() if scaling is None else scaling
        self.scaling.frequencies(min(head_width, 64), base, context, torch.device("cpu"))  # refuses narrow heads

    def rotation(self, phase: Tensor) -> RotaryRotation:
        rates = self.scaling.frequencies(self.head_width, self.base, self.context, phase.device)
        return rotary_rotation(phase[:, :, None, None] * rates, self.scaling.strength())


def rotary_rotation(angle: Tensor, strength: float = 1.0) -> RotaryRotation:
    """The rotation by ``angle`` [B|1, N, 1, D/2], scaled by ``strength``."""
    wide = angle.device.type == "cpu"  # float64 work stays exact; a GPU keeps float32 tables
    cos, sin = angle.cos(), angle.sin()
    if strength != 1:
        cos, sin = cos * strength, sin * strength
    return RotaryRotation(cos, sin) if wide else RotaryRotation(cos.float(), sin.float())


class Distances(Position):
    """A bias on the scores by the distance of query and key, a separate one for each layer, made by ``make``.

    It depends on distances only, so sequences may be longer than in training.
    """

    def __init__(self, make: Callable[[], Bias]):
        super().__init__()
        self.make = make

    def bias(self) -> Bias:
        return self.make()


class SharedDistances(Position):
    """``Distances`` with one bias for all layers."""

    def __init__(self, bias: Bias):
        super().__init__()
        self.shared = bias

    def bias(self) -> Bias:
        return self.shared


class PositionConfig(Choice):
    """Which position encoding a model uses."""

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        """The encoding. ``causal``: no query sees a later key, so later keys need no positions."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoPositionConfig(PositionConfig, kind="none"):
    """No positions."""

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Position()


@dataclass(frozen=True)
class SinusoidalConfig(PositionConfig, kind="sinusoidal"):
    """Fixed waves."""

    mode: Literal["add", "concatenate"] = option("add", "add to the embedding, or concatenate with it")
    base: float = option(10_000.0, "the longest wavelength over 2 pi")
    width: int | None = option(None, "width of the waves when concatenated (default: a quarter of the model's)")
    order: Literal["pairs", "halves"] = option(
        "pairs", "sine and cosine of a frequency side by side, or all sines first"
    )

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        beside = self.mode == "concatenate"
        waves = (self.width or width // 4) if beside else width
        if waves % 2 or waves >= width + (not beside):
            raise UserError(f"sinusoidal positions need an even width below the model's {width}, not {waves}")
        return Sinusoidal(waves, concatenate=beside, base=self.base, halves=self.order == "halves")


@dataclass(frozen=True)
class LearnedPositionConfig(PositionConfig, kind="learned"):
    """A learned vector per position."""

    offset: int = option(
        0, "the row of the table that the first position has; 2 in RoBERTa, whose padding has row 1", least=0
    )

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Learned(context, width, self.offset)


@dataclass(frozen=True)
class RotaryConfig(PositionConfig, kind="rotary"):
    """Rotary positions."""

    base: float = option(10_000.0, "the longest wavelength over 2 pi", above=0)
    scaling: ScalingConfig = field(default_factory=NoScalingConfig, metadata={"help": "for texts longer than trained"})

    def check(self) -> None:
        super().check()
        if self.base <= 1 and not isinstance(self.scaling, NoScalingConfig):
            raise ValueError(f"scaling slows some pairs more than others, which a base of {self.base:g} does not have")

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Rotary(head_width, base=self.base, scaling=self.scaling, context=context)


@dataclass(frozen=True)
class AlibiConfig(PositionConfig, kind="alibi"):
    """A fixed penalty that grows with distance (Press et al. 2022, sec. 3)."""

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Distances(partial(Alibi, width // head_width))


@dataclass(frozen=True)
class RelativeConfig(PositionConfig, kind="relative"):
    """A learned value r per layer, head and clipped distance, inside the scale: softmax((q·k + r_ij)/√d).

    The parameter is r/√d, which has the scale of a score and learns as fast; r itself hardly changed in 800 updates.
    """

    distance: int = option(64, "distances beyond this share a value", least=1)

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Distances(partial(Relative, width // head_width, self.distance))


@dataclass(frozen=True)
class T5Config(PositionConfig, kind="t5"):
    """A learned value per head and bucket of distances, shared by all layers (Raffel et al. 2020, sec. 2.1)."""

    buckets: int = option(32, "number of buckets per head")
    furthest: int = option(128, "distances beyond this share a value")

    def check(self) -> None:
        super().check()
        if self.buckets < 4 or self.buckets % 2:
            raise ValueError(f"buckets must be an even number from 4 on, not {self.buckets}")
        if self.furthest <= self.buckets // 2:
            raise ValueError(
                f"the first {self.buckets // 2} distances have a bucket each, so furthest must be more, "
                f"not {self.furthest}"
            )

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return SharedDistances(RelativeBuckets(width // head_width, self.buckets, self.furthest, causal=causal))
