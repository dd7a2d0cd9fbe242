"""Fit a law to a ladder, write its prediction for a larger model, then train that and compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from regard.runs.disk import replace_files
from regard.scale.ladder import Ladder, Rung
from regard.scale.law import FLOPS, FittedLaw, Interval, Law, Point, fit
from regard.trials import Outcome, train_trials
from regard.untrusted import read_plain

PREDICTION = "prediction.json"
WITHIN = 0.02  # relative error of a prediction that is called right
BUDGETS = (1, 10, 100, 1000)  # times the FLOPs of the ladder's largest training
Say = Callable[[str], None]


class TrainedRung(NamedTuple):
    """A finished training of the ladder."""

    rung: Rung
    outcome: Outcome

    @property
    def point(self) -> Point:
        """What the law is fitted to."""
        return Point(self.rung.parameters, self.outcome.tokens, self.outcome.loss)


@dataclass(frozen=True)
class ScaleResult:
    """A fitted law, its prediction, and what the larger model came to; no ``tested`` if that was not trained."""

    trained: Sequence[TrainedRung]
    fitted: FittedLaw
    prediction: Interval
    target: Rung
    tested: Sequence[TrainedRung]

    @property
    def result(self) -> float:
        """The mean loss of the larger model; infinite if a training diverged."""
        return fmean(one.outcome.loss for one in self.tested)

    @property
    def error(self) -> float:
        """The prediction relative to the result, less 1."""
        return self.prediction.value / self.result - 1

    def optimal(self) -> list[tuple[float, float, float, float]]:
        """Budgets in FLOPs, and for each the parameters, tokens and loss that the law finds best."""
        last = FLOPS * max(one.point.parameters * one.point.tokens for one in self.trained)
        found = [(last * times, *self.fitted.law.optimal(last * times)) for times in BUDGETS]
        return [(flops, n, d, self.fitted.law.loss(n, d)) for flops, n, d in found]

    def record(self) -> dict[str, Any]:
        """Everything that was measured, for a JSON file."""
        found: dict[str, Any] = prediction_record(self.trained, self.fitted, self.target, self.prediction)
        found["optimal"] = [
            dict(zip(("flops", "parameters", "tokens", "loss"), x, strict=True)) for x in self.optimal()
        ]
        if self.tested:
            known = math.isfinite(self.result)
            found["tested"] = [one.outcome.loss if known else None for one in self.tested]
            found |= {"result": self.result if known else None, "error": self.error if known else None}
        return found


def scale(
    ladder: Ladder, folder: Path, seed: int = 1, workers: int | None = None, test: bool = True, say: Say = print
) -> ScaleResult:
    """Train the ladder in ``folder``, fit the law, write ``prediction.json``, then train the larger model."""
    trained = train_all(ladder.rungs, folder, workers, say)
    finite = [one.point for one in trained if math.isfinite(one.outcome.loss)]
    fitted, target = fit(finite, seed=seed), ladder.larger[0]
    prediction = fitted.predict(target.parameters, target.tokens)
    text = json.dumps(prediction_record(trained, fitted, target, prediction), indent=1)
    if not (folder / PREDICTION).is_file() or read_plain(folder / PREDICTION) != text.encode():
        replace_files(folder, {PREDICTION: text})
    say(f"predicted for {target.parameters:,} parameters and {target.tokens:,} tokens: {prediction}")
    tested = train_all(ladder.larger, folder, workers, say) if test else []
    return ScaleResult(trained, fitted, prediction, target, tested)


def train_all(rungs: Sequence[Rung], folder: Path, workers: int | None, say: Say) -> list[TrainedRung]:
    """Every training in the order of the ladder; the longest begins first, and what is done in the folder is read."""
    longest = sorted(rungs, key=lambda one: one.parameters * one.tokens, reverse=True)
    found = dict(train_trials([one.trial for one in longest], folder, workers, say))
    return [TrainedRung(one, found[one.trial]) for one in rungs]


def prediction_record(
    trained: Sequence[TrainedRung], fitted: FittedLaw, target: Rung, prediction: Interval
) -> dict[str, Any]:
    """The ladder, the law and its prediction."""
    return {
        "ladder": [
            {**one.point._asdict(), "loss": None if one.outcome.problem else one.outcome.loss} for one in trained
        ],
        "law": {name: fitted.interval(name)._asdict() for name in Law._fields},
        "largest_residual": max(abs(math.expm1(r)) for r in fitted.residuals),
        "target": {"parameters": target.parameters, "tokens": target.tokens},
        "prediction": prediction._asdict(),
    }
