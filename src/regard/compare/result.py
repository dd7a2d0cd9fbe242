"""Train what is scheduled, and keep what was measured in a form that is written as JSON and read again."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.compare.budget import Length
from regard.compare.costs import Costs, Say
from regard.compare.observer import FinalMeasurements, measured, step_seconds
from regard.compare.schedule import ComparisonSchedule, ScheduledContender
from regard.compare.search import TriedRate, at_edge, best, search
from regard.errors import UserError
from regard.measure.interval import Mean
from regard.runs import Run
from regard.trials import Outcome, Trial, train_trials
from regard.untrusted import read_plain

JSON, PAGE, RUNS = "compare.json", "compare.html", "runs"


class TrainedContender(NamedTuple):
    """One training of one contender."""

    contender: str
    length: int  # its place among the lengths
    seed: int
    steps: int
    loss: float  # of validation; infinite if it diverged
    curve: list[tuple[int, float]]  # steps and validation losses
    step_seconds: float | None  # median while training
    positions: list[float]  # loss at each position of the context; empty if it has none
    test: dict[str, float]  # measures on the test part, such as accuracy_2x
    problem: str | None
    run: str


class ComparedContender(NamedTuple):
    """A contender: its size, costs and learning rate."""

    name: str
    kind: str
    layers: int
    width: int
    costs: Costs
    tried: list[TriedRate]

    @property
    def rate(self) -> float:
        """The learning rate that all trainings have."""
        return best(self.tried).rate

    @property
    def at_edge(self) -> bool:
        """Whether a better learning rate may lie beyond those that were tried."""
        return at_edge(self.tried)


@dataclass(frozen=True)
class ArchitectureComparison:
    """Everything that was measured."""

    name: str
    lengths: list[Length]
    parameters: float | None  # that sizes were solved for
    contenders: list[ComparedContender]
    trainings: list[TrainedContender]
    setting: str
    seconds: float  # predicted, of all

    def of(self, contender: str, length: int) -> list[TrainedContender]:
        """The trainings of one contender at one length, by seed."""
        found = [one for one in self.trainings if (one.contender, one.length) == (contender, length)]
        return sorted(found, key=lambda one: one.seed)

    def losses(self, contender: str, length: int) -> list[float]:
        """The last validation losses, by seed."""
        return [one.loss for one in self.of(contender, length)]

    def ranked(self, length: int) -> list[tuple[ComparedContender, Mean]]:
        """The contenders with their mean loss, the best first."""
        found = [(one, Mean.of(self.losses(one.name, length))) for one in self.contenders]
        return sorted(found, key=lambda pair: pair[1].value)

    def record(self) -> dict[str, Any]:
        """As JSON; an infinite loss is null."""
        table = asdict(self)
        table["lengths"] = [one._asdict() for one in self.lengths]
        table["contenders"] = [
            {
                **one._asdict(),
                "costs": {**one.costs._asdict(), "step": one.costs.step._asdict()},
                "tried": [tried._asdict() | {"loss": finite(tried.loss)} for tried in one.tried],
                "rate": one.rate,
                "at_edge": one.at_edge,
            }
            for one in self.contenders
        ]
        table["trainings"] = [one._asdict() | {"loss": finite(one.loss)} for one in self.trainings]
        return table

    @classmethod
    def read(cls, path: Path) -> ArchitectureComparison:
        """A comparison from its JSON file."""
        try:
            table = json.loads(read_plain(path))
            lengths = [Length(**one) for one in table["lengths"]]
            contenders = [_read_contender(one) for one in table["contenders"]]
            trainings = [_read_training(one) for one in table["trainings"]]
            return cls(**{**table, "lengths": lengths, "contenders": contenders, "trainings": trainings})
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path} is no comparison ({problem}); `regard compare` writes one") from None


def finite(loss: float) -> float | None:
    """The loss; None if it is infinite."""
    return loss if math.isfinite(loss) else None


def _read_contender(record: dict[str, Any]) -> ComparedContender:
    tried = [TriedRate(**{**one, "loss": math.inf if one["loss"] is None else one["loss"]}) for one in record["tried"]]
    costs = Costs.read({**record["costs"], "step": record["costs"]["step"].values()})
    fields = {key: record[key] for key in ("name", "kind", "layers", "width")}
    return ComparedContender(**fields, costs=costs, tried=tried)


def _read_training(record: dict[str, Any]) -> TrainedContender:
    curve = [(step, loss) for step, loss in record["curve"]]
    return TrainedContender(
        **{**record, "curve": curve, "loss": math.inf if record["loss"] is None else record["loss"]}
    )


def compare(schedule: ComparisonSchedule, name: str, setting: str, say: Say) -> ArchitectureComparison:
    """Search learning rates, then train every contender at every length with every seed.

    Whatever is in the folder is read, and what was interrupted continues.
    """
    folder = schedule.folder / RUNS
    tried = search(schedule, folder, say)
    trials: dict[Trial, list[tuple[ScheduledContender, int, int]]] = {}  # two lengths may be the same training
    for length in range(len(schedule.lengths)):
        for seed in schedule.seeds:
            for one in schedule.contenders:
                experiment = one.training(one.steps[length], seed, best(tried[one.name]).factor)
                trials.setdefault(Trial(f"{one.name} seed {seed}", experiment), []).append((one, length, seed))
    found: list[TrainedContender] = []
    observers = [FinalMeasurements]
    for trial, outcome in train_trials(list(trials), folder, schedule.workers, say, schedule.threads, observers):
        found += [trained(*place, trial, outcome) for place in trials[trial]]
    return ArchitectureComparison(
        name=name,
        lengths=list(schedule.lengths),
        parameters=schedule.settings.budget.params,
        contenders=[
            ComparedContender(
                one.name,
                one.experiment.model.kind,
                one.experiment.model.layers,
                one.experiment.model.width,
                one.costs,
                tried[one.name],
            )
            for one in schedule.contenders
        ],
        trainings=sorted(found, key=lambda one: (one.length, one.contender, one.seed)),
        setting=setting,
        seconds=schedule.total,
    )


def trained(contender: ScheduledContender, length: int, seed: int, trial: Trial, outcome: Outcome) -> TrainedContender:
    """The measurements of a finished training."""
    run = Run.open(outcome.path)
    records, extra = run.metrics(), measured(run)
    curve = [(one["step"], float(one["validation_loss"])) for one in records if "validation_loss" in one]
    return TrainedContender(
        contender.name,
        length,
        seed,
        contender.steps[length],
        outcome.loss,
        [(step, loss) for step, loss in curve if math.isfinite(loss)],
        step_seconds(records, trial.experiment.train.save_every),
        extra.get("positions", []),
        extra.get("test", {}),
        outcome.problem,
        run.name,
    )
