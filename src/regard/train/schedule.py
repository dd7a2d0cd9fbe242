"""Learning rate schedules: a factor in [0, 1] as a pure function of the step, so there is no state to save.

``factor(step, steps)`` is the factor of step number ``step`` (from 0) in a run of ``steps``. Warm-up is linear and
reaches 1 at its last step; no step has the factor 0 unless it is configured.
"""

import math
from dataclasses import dataclass

from regard.config import Choice, option

_WARMUP = "warm-up: below 1 a fraction of all steps, from 1 on a number of steps"
_FINAL = "the factor at the end of the decay"


class ScheduleConfig(Choice):
    """Which learning rate schedule scales the peak rate."""

    def factor(self, step: int, steps: int) -> float:
        """The factor of step number ``step`` of ``steps``."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantScheduleConfig(ScheduleConfig, kind="constant"):
    """Warm-up, then 1."""

    warmup: float = option(0.0, _WARMUP)

    def check(self) -> None:
        """Refuse an impossible warm-up."""
        _check_length("warmup", self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """Linear warm-up, then 1."""
        return _rise(step, _length(self.warmup, steps))


class DecayScheduleConfig(ScheduleConfig):
    """Warm-up, then a decay from 1 to ``final`` that ends with the run."""

    warmup: float
    final: float

    def check(self) -> None:
        """Refuse impossible lengths and levels."""
        _check_length("warmup", self.warmup)
        _check_level(self.final)

    def decay(self, progress: float) -> float:
        """The factor when the fraction ``progress`` of the decay is done, for ``final`` = 0."""
        raise NotImplementedError

    def factor(self, step: int, steps: int) -> float:
        warmup = _length(self.warmup, steps)
        if step < warmup:
            return _rise(step, warmup)
        return _blend(self.decay(_progress(step, warmup, steps)), self.final)


@dataclass(frozen=True)
class LinearScheduleConfig(DecayScheduleConfig, kind="linear"):
    """Warm-up, then linear decay from 1 to ``final``."""

    warmup: float = option(0.05, _WARMUP)
    final: float = option(0.0, _FINAL)

    def decay(self, progress: float) -> float:
        return 1 - progress


@dataclass(frozen=True)
class CosineScheduleConfig(DecayScheduleConfig, kind="cosine"):
    """Warm-up, then cosine decay from 1 to ``final`` (Loshchilov and Hutter 2017, without restarts)."""

    warmup: float = option(0.05, _WARMUP)
    final: float = option(0.1, _FINAL)

    def decay(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class TrapezoidScheduleConfig(ScheduleConfig, kind="trapezoid"):
    """Warm-up, constant, then linear decay to ``final`` over the last ``decay`` steps."""

    warmup: float = option(0.02, _WARMUP)
    decay: float = option(0.4, "decay at the end: up to 1 a fraction of all steps, above 1 a number of steps")
    final: float = option(0.0, _FINAL)

    def check(self) -> None:
        """Refuse impossible lengths and levels."""
        _check_length("warmup", self.warmup)
        if self.decay != 1:
            _check_length("decay", self.decay)
        _check_level(self.final)

    def factor(self, step: int, steps: int) -> float:
        """The minimum of the warm-up and the decay."""
        decay = steps if self.decay == 1 else _length(self.decay, steps)
        fall = _blend(min(1.0, (steps - step) / decay), self.final) if decay else 1.0
        return min(_rise(step, _length(self.warmup, steps)), max(fall, self.final))


@dataclass(frozen=True)
class NoamScheduleConfig(ScheduleConfig, kind="noam"):
    """Warm-up, then the inverse square root of the step (Vaswani et al. 2017, equation 3).

    The paper's rate is width^-0.5 · min(s^-0.5, s · warmup^-1.5) for s = 1, 2, ... Here it is divided by its peak,
    (width · warmup)^-0.5, so that the optimizer's `lr` is the peak rate, as with every other schedule; for the
    paper's own rates set `lr` to (width · warmup)^-0.5.
    """

    warmup: float = option(4000.0, _WARMUP)

    def check(self) -> None:
        """Refuse an impossible warm-up."""
        _check_length("warmup", self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """min(s / warmup, (warmup / s)^0.5) for s = step + 1."""
        warmup = max(1, _length(self.warmup, steps))
        return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def _length(value: float, steps: int) -> int:
    return round(value * steps) if value < 1 else round(value)


def _rise(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _progress(step: int, warmup: int, steps: int) -> float:
    """The fraction of the decay that is done: 0 at the end of warm-up, 1 at the end of the run."""
    return min(1.0, (step - warmup) / max(1, steps - warmup))


def _blend(share: float, final: float) -> float:
    return final + (1 - final) * max(0.0, share)


def _check_length(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0 or (value >= 1 and value != round(value)):
        raise ValueError(f"{name} is a share below 1 or a whole number of steps, got {value}")


def _check_level(final: float) -> None:
    if not 0 <= final <= 1:
        raise ValueError(f"final is a factor between 0 and 1, got {final}")
