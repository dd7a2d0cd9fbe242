"""Learning rate schedules: a factor in [0, 1] as a pure function of the step, so there is no state to save.

``factor(step, steps)`` is the factor of step number ``step`` (from 0) in a run of ``steps``. Warm-up is linear and
reaches 1 at its last step; no step has the factor 0 unless it is configured. A run whose number of steps changes is
still such a function: of where its steps lie in the schedule of its first plan (``virtual_step``).
"""

import math
from dataclasses import dataclass

from regard.config import Choice, option

_WARMUP = "warm-up: below 1 a fraction of all steps, from 1 on a number of steps"
_FINAL = "the factor at the end of the decay"
#: The numbers of steps that a run has planned: (step from which on it is the plan, steps), ...; the first from step 0.
Plans = tuple[tuple[int, int], ...]


def virtual_step(step: int, plans: Plans) -> float:
    """Where ``step`` lies in the schedule of the first plan.

    A change of plan maps the steps that are left onto what is left of the schedule. So it has no jump, and ends with
    the last step.

    >>> [virtual_step(step, ((0, 10), (4, 7))) for step in range(8)]
    [0, 1, 2, 3, 4, 6.0, 8.0, 10.0]
    """
    left, (since, steps) = 1.0, plans[0]  # the share of the schedule that is left at ``since``
    for changed, newer in plans[1:]:
        if step <= changed:
            break
        left *= (steps - changed) / (steps - since)
        since, steps = changed, newer
    return plans[0][1] * (1 - left * ((steps - step) / (steps - since))) if since else step


class ScheduleConfig(Choice):
    """Which learning rate schedule scales the peak rate."""

    def factor(self, step: float, steps: int) -> float:
        """The factor of step number ``step`` of ``steps``; between two steps it is between theirs."""
        raise NotImplementedError


class WarmupScheduleConfig(ScheduleConfig):
    """Linear warm-up, then ``decay``; a decay ends with the run at the factor ``final``."""

    warmup: float
    final: float = 0.0

    def check(self) -> None:
        """Refuse impossible lengths and levels."""
        _check_length("warmup", self.warmup)
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a factor between 0 and 1, got {self.final}")

    def factor(self, step: float, steps: int) -> float:
        """Linear warm-up, then the decay from 1 to ``final``."""
        warmup = _length(self.warmup, steps)
        if step < warmup:
            return min(1.0, (step + 1) / warmup)
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return self.final + (1 - self.final) * max(0.0, self.remaining(progress))

    def remaining(self, progress: float) -> float:
        """The factor when the fraction ``progress`` of the time after warm-up is over, for ``final`` = 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantScheduleConfig(WarmupScheduleConfig, kind="constant"):
    """Warm-up, then 1."""

    warmup: float = option(0.0, _WARMUP)

    def remaining(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class LinearScheduleConfig(WarmupScheduleConfig, kind="linear"):
    """Warm-up, then linear decay from 1 to ``final``."""

    warmup: float = option(0.05, _WARMUP)
    final: float = option(0.0, _FINAL)

    def remaining(self, progress: float) -> float:
        return 1 - progress


@dataclass(frozen=True)
class CosineScheduleConfig(WarmupScheduleConfig, kind="cosine"):
    """Warm-up, then cosine decay from 1 to ``final`` (Loshchilov and Hutter 2017, without restarts)."""

    warmup: float = option(0.05, _WARMUP)
    final: float = option(0.1, _FINAL)

    def remaining(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class TrapezoidScheduleConfig(WarmupScheduleConfig, kind="trapezoid"):
    """Warm-up, constant, then linear decay to ``final`` over the last ``decay`` steps."""

    warmup: float = option(0.02, _WARMUP)
    decay: float = option(0.4, "decay at the end: up to 1 a fraction of all steps, above 1 a number of steps")
    final: float = option(0.0, _FINAL)

    def check(self) -> None:
        """Refuse impossible lengths and levels."""
        super().check()
        if self.decay != 1:
            _check_length("decay", self.decay)

    def factor(self, step: float, steps: int) -> float:
        """The minimum of the warm-up and the decay."""
        warmup, decay = _length(self.warmup, steps), steps if self.decay == 1 else _length(self.decay, steps)
        rise = min(1.0, (step + 1) / max(1, warmup))
        left = min(1.0, max(0, steps - step) / decay) if decay else 1.0
        return min(rise, self.final + (1 - self.final) * left)


@dataclass(frozen=True)
class NoamScheduleConfig(WarmupScheduleConfig, kind="noam"):
    """Warm-up, then the inverse square root of the step (Vaswani et al. 2017, equation 3).

    The paper's rate is width^-0.5 · min(s^-0.5, s · warmup^-1.5) for s = 1, 2, ... Here it is divided by its peak,
    (width · warmup)^-0.5, so that the optimizer's `lr` is the peak rate, as with every other schedule; for the
    paper's own rates set `lr` to (width · warmup)^-0.5.
    """

    warmup: float = option(4000.0, _WARMUP)

    def factor(self, step: float, steps: int) -> float:
        """min(s / warmup, (warmup / s)^0.5) for s = step + 1."""
        warmup = max(1, _length(self.warmup, steps))
        return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def _length(value: float, steps: int) -> int:
    return round(value * steps) if value < 1 else round(value)


def _check_length(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0 or (value >= 1 and value != round(value)):
        raise ValueError(f"{name} is a share below 1 or a whole number of steps, got {value}")
