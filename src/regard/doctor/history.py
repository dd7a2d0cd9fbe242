"""The numbers of a run so far: losses, learning rates, gradient norms, validation losses, sizes of updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

RECENT = 10  # steps over which medians are taken


class StepNumbers(NamedTuple):
    """The numbers of one finite step."""

    step: int
    loss: float
    rate: float
    norm: float  # of the gradient, before clipping


class History:
    """Numbers of a run, added step by step or read from metrics.jsonl."""

    def __init__(self) -> None:
        self.steps: list[StepNumbers] = []
        self.validation: list[tuple[int, float]] = []  # (step, loss)
        self.updates: list[float] = []  # median of |update| / |weight| over the matrices, where it was measured
        self.unmoved: list[str] = []  # layers that got a gradient and did not move in the last measured update

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]

    @property
    def rates(self) -> list[float]:
        return [step.rate for step in self.steps]

    @property
    def norms(self) -> list[float]:
        return [step.norm for step in self.steps]

    def add(self, step: int, loss: float, rate: float, norm: float) -> None:
        """Add one step; steps that are not finite are left out."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.steps.append(StepNumbers(step, loss, rate, norm))

    def read(self, record: Mapping[str, Any]) -> None:
        """Add one record of metrics.jsonl, where a number that is not finite is a string."""
        if "loss" in record:
            self.add(record["step"], *(_number(record.get(name)) for name in ("loss", "lr", "grad_norm")))
        if "validation_loss" in record and math.isfinite(loss := _number(record["validation_loss"])):
            self.validation.append((record["step"], loss))

    def norm(self) -> float:
        """The median of the last gradient norms."""
        return statistics.median(self.norms[-2 * RECENT :]) if self.steps else 0.0


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
