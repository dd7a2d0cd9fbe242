"""Means of repeated measurements with 95 % intervals by Student's t."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# 0.975 quantiles of Student's t, by the number of values less 1; beyond the last one they are a little too wide.
T95 = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Mean(NamedTuple):
    """The mean of one measurement with several seeds, and half the width of its 95% confidence interval."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """By Student's t; infinite if a value is, and the interval of a single value is."""
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return cls(statistics.fmean(values), math.inf)
        quantile = T95[min(len(values), len(T95)) - 1]
        return cls(statistics.fmean(values), quantile * statistics.stdev(values) / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}" if math.isfinite(self.value) else "not finite"


def difference(a: Sequence[float], b: Sequence[float]) -> Mean:
    """The mean of a - b, paired by seed: with the same seed, models are trained on the same batches."""
    return Mean.of([x - y for x, y in zip(a, b, strict=True)])
