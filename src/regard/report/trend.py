"""The trend of a run: one of a few labels, each decided by a rule over the curves."""

from __future__ import annotations

from typing import Literal

from regard.report.facts import Curve, Facts

Trend = Literal["diverged", "unknown", "short", "worse", "overfits", "falls", "flat"]

#: A relative change of the loss below this is ignored.
NOTICEABLE = 0.01
#: With fewer records than this, there is no trend.
FEW = 5


def trend(facts: Facts) -> Trend:
    """The label of this run; the most serious one that applies."""
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
    judged = facts.validation if len(facts.validation) > 2 else smooth(facts.loss)
    before = [value for step, value in judged if step <= 0.75 * judged[-1][0]]
    return "falls" if before and before[-1] - judged[-1][1] > NOTICEABLE * before[-1] else "flat"


def best_validation(validation: Curve) -> tuple[int, float]:
    """Step and value of the lowest validation loss."""
    step, value = min(validation, key=lambda point: point[1])
    return int(step), value


def tail(curve: Curve) -> float:
    """The mean of the last tenth, at least three records: single batches vary."""
    return _mean(curve[-_stretch(curve) :])


def lowest_stretch(curve: Curve) -> float:
    """The lowest mean of any tenth of the run."""
    size = _stretch(curve)
    return min(_mean(curve[i : i + size]) for i in range(len(curve) - size + 1))


def around(curve: Curve, step: float) -> float:
    """The mean of the records up to a step, as many as `tail` takes."""
    before = [point for point in curve if point[0] <= step] or curve[:1]
    return _mean(before[-_stretch(curve) :])


def smooth(curve: Curve) -> Curve:
    """The curve of the means of the latest tenth."""
    size = _stretch(curve)
    return [(step, _mean(curve[max(0, i - size + 1) : i + 1])) for i, (step, _) in enumerate(curve)]


def _stretch(curve: Curve) -> int:
    return min(len(curve), max(3, len(curve) // 10))


def _mean(points: Curve) -> float:
    return sum(value for _, value in points) / len(points)
