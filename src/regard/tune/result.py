"""What a search found: its trials, stage by stage, the best experiment, and the comparison with the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.measure.interval import Mean, difference
from regard.train import Experiment
from regard.tune.space import Space, Value, values_of


class Tried(NamedTuple):
    """A trial of the search; ``loss`` is None if it was pruned, diverged or impossible."""

    number: int
    stage: str
    values: Mapping[str, Value]  # of the stage's keys
    loss: float | None
    state: str  # "done", "pruned" or "failed"


@dataclass(frozen=True)
class Stage:
    """A stage: its trials, of which the first is the best of the stages before it, and what it fixed."""

    name: str
    space: Space
    tried: Sequence[Tried]
    fixed: Mapping[str, Value]
    loss: float


class DefaultComparison(NamedTuple):
    """Losses of the default and of the best configuration, one per fresh seed, at the same FLOPs."""

    default: Sequence[float]
    best: Sequence[float]

    @property
    def gain(self) -> Mean:
        """The default's loss less that of the best, paired by seed."""
        return difference(self.default, self.best)

    @property
    def beats(self) -> bool:
        """Whether the best configuration is better: the 95 % interval of the gain is above zero."""
        return math.isfinite(self.gain.error) and self.gain.value - self.gain.error > 0


@dataclass(frozen=True)
class TuneResult:
    """The stages of a search, the best experiment, what mattered, and the comparison with the default."""

    stages: Sequence[Stage]
    default: Experiment
    best: Experiment
    importance: Mapping[str, float]
    comparison: DefaultComparison | None  # None if the best configuration is the default

    def changes(self) -> dict[str, tuple[Value, Value]]:
        """The keys in which the best configuration differs: default and best value."""
        keys = {key: one for stage in self.stages for key, one in stage.space.items()}
        before, after = values_of(self.default, keys), values_of(self.best, keys)
        return {key: (before[key], after[key]) for key in keys if before[key] != after[key]}

    def record(self) -> dict[str, Any]:
        """Everything that was measured, for a JSON file."""
        found: dict[str, Any] = {
            "stages": [
                {"name": x.name, "fixed": x.fixed, "loss": x.loss, "trials": [one._asdict() for one in x.tried]}
                for x in self.stages
            ],
            "importance": dict(self.importance),
            "changes": {key: {"default": a, "best": b} for key, (a, b) in self.changes().items()},
        }
        if self.comparison is not None:
            gain = self.comparison.gain
            finite = math.isfinite(gain.error)
            found["comparison"] = {
                name: [loss if math.isfinite(loss) else None for loss in losses]
                for name, losses in self.comparison._asdict().items()
            }
            found["comparison"] |= {"gain": gain.value if finite else None, "error": gain.error if finite else None}
            found["comparison"]["beats"] = self.comparison.beats
        return found
