"""The frequencies of rotary positions, and scalings for sequences longer than in training.

A pair of slow frequency does not complete a rotation within the trained length: beyond it there are angles that the
model has never seen. Each scaling slows the rotation, so that the trained angles cover longer sequences; they differ in
which pairs they slow. All are functions of the pair's index, so trained weights can be used with any of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import Choice, option
from regard.errors import UserError


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width) for each pair i, in float64: angles at large phases need every digit."""
    return base ** (-torch.arange(0, width, 2, device=device, dtype=angle_dtype(device)) / width)


def angle_dtype(device: torch.device) -> torch.dtype:
    """The most precise type of the device."""
    return torch.float32 if device.type == "mps" else torch.float64


class ScalingConfig(Choice):
    """How rotary positions are scaled beyond the trained length."""

    def check(self) -> None:
        """Every option is a finite number above 0, and a factor at least 1."""
        for name, value in vars(self).items():
            if value is None:
                continue
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, not {value}")
            if name == "factor" and value < 1:
                raise ValueError(f"factor must be at least 1, not {value}: a scaling is for longer sequences")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        """The rotation of each pair of a head per position, [width / 2]; ``context`` is the model's context."""
        raise NotImplementedError

    def strength(self) -> float:
        """A factor on queries and keys; scores grow by its square."""
        return 1.0


@dataclass(frozen=True)
class NoScalingConfig(ScalingConfig, kind="none"):
    """No scaling."""

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        return frequencies(width, base, device)


@dataclass(frozen=True)
class LinearScalingConfig(ScalingConfig, kind="linear"):
    """All pairs are slowed equally: position interpolation (Chen et al. 2023, sec. 3.2)."""

    factor: float = option(2.0, "how many times the trained length is supported")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        return frequencies(width, base, device) / self.factor


@dataclass(frozen=True)
class NTKScalingConfig(ScalingConfig, kind="ntk"):
    """A greater base: the slowest pair is slowed by the factor, the fastest not at all (Peng et al. 2023, sec. 3.1)."""

    factor: float = option(2.0, "how many times the trained length is supported")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        return frequencies(width, _greater(base, self.factor, width), device)


@dataclass(frozen=True)
class DynamicScalingConfig(ScalingConfig, kind="dynamic"):
    """NTK scaling by a given length: none up to the trained length, then as much as ``length`` needs.

    The length is an option, not that of the input: a length that followed the input would rotate cached keys by other
    angles than later queries, and make a row's output depend on the padding of its batch.
    """

    factor: float = option(1.0, "how strongly the base grows with the length")
    length: int | None = option(None, "longest sequence to support (default: the trained length, without scaling)")
    trained: int | None = option(None, "longest sequence in training (default: the model's context)")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        trained = self.trained or context
        longer = max(self.length or trained, trained) / trained
        return frequencies(width, _greater(base, self.factor * longer - (self.factor - 1), width), device)


@dataclass(frozen=True)
class RampScalingConfig(ScalingConfig):
    """Base class of the scalings by how often a pair rotates within the trained length: fast ones stay, slow ones are
    interpolated, and those between are mixed.
    """

    factor: float = option(2.0, "how many times the trained length is supported")
    fast: float = option(32.0, "pairs with more rotations than this within the trained length are not slowed")
    slow: float = option(1.0, "pairs with fewer rotations than this are slowed by the whole factor")
    trained: int | None = option(None, "longest sequence in training (default: the model's context)")

    def check(self) -> None:
        super().check()
        if self.fast <= self.slow:
            raise ValueError(f"fast = {self.fast:g} rounds must be more than slow = {self.slow:g}")


@dataclass(frozen=True)
class YarnScalingConfig(RampScalingConfig, kind="yarn"):
    """Fast pairs stay, slow ones are interpolated, and scores are sharpened (Peng et al. 2023, sec. 3.2 and 3.4).

    The number of rotations within the trained length decides; between ``fast`` and ``slow`` rotations the two are
    mixed linearly by the pair's index. As in the authors' code, the ends of that ramp are whole pairs.
    """

    temperature: float | None = option(None, "factor on queries and keys (default: 0.1 ln factor + 1)")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        def pair(rounds: float) -> float:  # the pair with so many rotations within the trained length
            return width * math.log((self.trained or context) / (rounds * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(pair(self.fast)), 0), min(math.ceil(pair(self.slow)), width - 1)
        plain = frequencies(width, base, device)
        number = torch.arange(width // 2, device=device, dtype=plain.dtype)
        slowed = ((number - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return plain / self.factor * slowed + plain * (1 - slowed)

    def strength(self) -> float:
        """The paper's √(1/t), sec. 3.4, an empirical formula."""
        if self.temperature is not None:
            return self.temperature
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3ScalingConfig(RampScalingConfig, kind="llama3"):
    """As YaRN, with a ramp in rotations rather than in pairs and no factor on the scores (Grattafiori et al. 2024)."""

    factor: float = option(8.0, "how many times the trained length is supported")
    fast: float = option(4.0, "pairs with more rotations than this within the trained length are not slowed")

    def frequencies(self, width: int, base: float, context: int, device: torch.device) -> Tensor:
        plain = frequencies(width, base, device)
        rounds = (self.trained or context) * plain / (2 * math.pi)
        kept = ((rounds - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept


def _greater(base: float, factor: float, width: int) -> float:
    """The base at which the slowest pair of a head is slowed by ``factor``."""
    if width < 4:
        raise UserError(
            f"ntk scaling spreads over the pairs of a head; a head width of {width} has one: use wider heads"
        )
    return base * factor ** (width / (width - 2))
