"""What became of the loss in a run, as far as its records are evidence."""

import math
from typing import Literal, NamedTuple

from regard.report.facts import Curve, Facts

Trend = Literal["diverged", "unknown", "short", "worse", "overfits", "falls", "flat"]

#: A relative change of the loss below this is ignored; one above `WORTH` must be excluded before a run has converged.
NOTICEABLE, WORTH = 0.01, 0.05
#: With fewer records than this, of the run or of its last quarter, there is no trend.
FEW = 5
LATE = 0.75  # where the last quarter begins


class Fall(NamedTuple):
    """How far a loss fell in the last quarter, as a share of its mean there, and half of the 95% interval of that."""

    share: float
    margin: float


def trend(facts: Facts) -> Trend:
    """The label of this run; the most serious one that applies. Converged ("flat") takes evidence, else it is short."""
    if facts.failed:
        return "diverged"
    if not facts.loss:
        return "unknown"
    if len(facts.loss) < FEW:
        return "short"
    late, lowest = tail(facts.loss), lowest_stretch(facts.loss)
    if late > lowest + max(0.1, 0.1 * lowest):
        return "worse"
    if len(facts.validation) > 1:
        (at, best), (_, last) = best_validation(facts.validation), facts.validation[-1]
        if last > best * (1 + NOTICEABLE):
            return "overfits" if late < around(facts.loss, at) else "worse"
    return _at_the_end(facts)


def _at_the_end(facts: Facts) -> Trend:
    """Whether the loss fell in the last quarter. Three evaluations decide alone: their noise is small."""
    fell, measured = training_fall(facts.loss), len(facts.validation) > 2
    surely = fell is not None and fell.share - fell.margin > NOTICEABLE
    if validation_fall(facts.validation) > NOTICEABLE or (surely and not measured):
        return "falls"
    enough = len(last_quarter(facts.loss)) + len(last_quarter(facts.validation)) >= FEW
    level = fell is not None and abs(fell.share) + fell.margin <= WORTH
    return "flat" if enough and (measured or level) else "short"


def training_fall(curve: Curve) -> Fall | None:
    """The fall of the line of least squares through the last quarter; None of too few records."""
    late = last_quarter(curve)
    middle, mean = (sum(column) / max(1, len(late)) for column in zip(*late, strict=True)) if late else (0.0, 0.0)
    spread = sum((step - middle) ** 2 for step, _ in late)
    if len(late) < FEW or not spread or mean <= 0:
        return None
    slope = sum((step - middle) * value for step, value in late) / spread
    free = len(late) - 2
    variance = sum((value - mean - slope * (step - middle)) ** 2 for step, value in late) / free
    quarter = (1 - LATE) * curve[-1][0] / mean
    factor = 1.96 + 4 / free  # no less than Student's, whose table is in no standard library
    return Fall(-slope * quarter, factor * math.sqrt(variance / spread) * quarter)


def validation_fall(curve: Curve) -> float:
    """The fall in the last quarter as a share of the loss before it; a part of it, where evaluations are further apart.

    0 if it is unknown.
    """
    before = [(step, value) for step, value in curve if step <= LATE * curve[-1][0]]
    if not before or before[-1][1] <= 0:
        return 0.0
    (step, value), (end, last) = before[-1], curve[-1]
    return (value - last) / value * (1 - LATE) * end / (end - step)


def last_quarter(curve: Curve) -> Curve:
    """The points in the last quarter of the steps."""
    return [point for point in curve if point[0] > LATE * curve[-1][0]]


def best_validation(validation: Curve) -> tuple[int, float]:
    """Step and value of the lowest validation loss."""
    step, value = min(validation, key=lambda point: point[1])
    return int(step), value


def tail(curve: Curve) -> float:
    """The mean of the last tenth, at least three records: single batches vary."""
    return _mean(curve[-tail_records(curve) :])


def lowest_stretch(curve: Curve) -> float:
    """The lowest mean of any tenth of the run."""
    size = tail_records(curve)
    return min(_mean(curve[i : i + size]) for i in range(len(curve) - size + 1))


def around(curve: Curve, step: float) -> float:
    """The mean of the records up to a step, as many as `tail` takes."""
    before = [point for point in curve if point[0] <= step] or curve[:1]
    return _mean(before[-tail_records(curve) :])


def tail_records(curve: Curve) -> int:
    """How many records `tail` is the mean of."""
    return min(len(curve), max(3, len(curve) // 10))


def _mean(points: Curve) -> float:
    return sum(value for _, value in points) / len(points)
