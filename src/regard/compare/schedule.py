"""What is to be trained: every contender's size, numbers of steps and trials, and the time that all of it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.compare.budget import LEAST, Budget, Length, steps_of
from regard.compare.contender import Contender, made_alike, sized
from regard.compare.costs import Costs, Say, known_costs
from regard.errors import UserError
from regard.pages.numbers import duration, plural, unit
from regard.report.inspection import TOKENS as POSITIONS
from regard.train import Experiment
from regard.trials import cores, default_workers

EVALUATIONS = 8  # of a training
SHARE = 0.03  # of the tokens of the shortest training are evaluated on each time,
FEWEST, MANY = 4_000, 200_000  # within these limits


@dataclass(frozen=True)
class ComparisonSettings:
    """How contenders are compared."""

    budget: Budget
    seeds: int = 3
    rates: int = 3  # learning rates that are tried for each contender
    share: float = 0.25  # of the first length: the length of such a trial
    workers: int | None = None  # None: one per core or GPU
    scale: float = 1.0  # of all lengths of training


@dataclass(frozen=True)
class ScheduledContender:
    """A contender, what its steps take, and how many it trains for at each length."""

    name: str
    experiment: Experiment
    costs: Costs
    steps: tuple[int, ...]  # one for each length
    trial_steps: int  # of a trial of a learning rate
    evaluation: float  # seconds of one evaluation
    final: float  # seconds of the measurements after a training

    def training(self, steps: int, seed: int, factor: float = 1.0, evaluations: int = EVALUATIONS) -> Experiment:
        """A training of so many steps; ``factor``: of the learning rates."""
        every = max(1, steps // evaluations)
        train = replace(
            self.experiment.train,
            steps=steps,
            tokens=None,
            epochs=None,
            seconds=None,
            patience=None,
            optimizer=with_rate(self.experiment.train.optimizer, factor),
            evaluate_every=None if evaluations == 1 else every,
            log_every=max(1, every // 4),
            save_every=None if evaluations == 1 else 2 * every,
            keep=1,
        )
        return replace(self.experiment, train=train, seed=seed).checked()


@dataclass(frozen=True)
class ComparisonSchedule:
    """All trainings of a comparison."""

    contenders: tuple[ScheduledContender, ...]
    lengths: tuple[Length, ...]
    settings: ComparisonSettings
    workers: int
    threads: int
    folder: Path

    @property
    def seeds(self) -> range:
        """The seeds that every contender is trained with."""
        first = self.contenders[0].experiment.seed
        return range(first, first + self.settings.seeds)

    @property
    def searching(self) -> float:
        """Predicted seconds of all trials of learning rates, one after the other."""
        trials = 0 if self.settings.rates == 1 else self.settings.rates
        return trials * sum(one.trial_steps * one.costs.step.seconds + one.evaluation for one in self.contenders)

    def trainings(self, length: int) -> float:
        """Predicted seconds of the trainings of one length, one after the other, without evaluations."""
        return self.settings.seeds * sum(one.steps[length] * one.costs.step.seconds for one in self.contenders)

    @property
    def evaluations(self) -> float:
        """Predicted seconds of all evaluations during these trainings."""
        times = len(self.lengths) * self.settings.seeds
        return times * sum(EVALUATIONS * one.evaluation + one.final for one in self.contenders)

    @property
    def total(self) -> float:
        """Predicted seconds from start to end."""
        trainings = sum(self.trainings(place) for place in range(len(self.lengths)))
        return (self.searching + trainings + self.evaluations) / self.workers

    def arithmetic(self) -> Iterator[str]:
        """How the total time comes about."""
        settings, many = self.settings, len(self.contenders)
        if self.searching:
            each = self.searching / many / settings.rates
            yield (
                f"learning rates: {many} contenders x {settings.rates} trials x {duration(each)} on average = "
                f"{duration(self.searching)}"
            )
        for place, length in enumerate(self.lengths):
            whole = self.trainings(place)
            yield (
                f"trainings at equal {length.measure} ({length}): {many} contenders x {settings.seeds} seeds x "
                f"{duration(whole / many / settings.seeds)} on average = {duration(whole)}"
            )
        yield f"evaluations: {EVALUATIONS} in each of these trainings, and by position = {duration(self.evaluations)}"
        yield (
            f"sum / {plural(self.workers, 'worker')} of {plural(self.threads, 'thread')} = {duration(self.total)} in "
            "all, if the machine is as busy as now"
        )

    def sizes(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Columns and rows of what is compared."""
        columns = ("contender", "parameters", "layers x width", "FLOPs/step", "s/step", "memory")
        columns += tuple(f"steps, {length}" for length in self.lengths)
        rows = []
        for one in self.contenders:
            costs, model = one.costs, one.experiment.model
            shape = f"{model.layers} x {model.width}"
            row = (one.name, f"{costs.parameters:,}", shape, unit(costs.step.flops, ""), f"{costs.step.seconds:.4g}")
            rows.append((*row, unit(costs.memory, "B"), *(f"{steps:,}" for steps in one.steps)))
        return columns, rows


def schedule(
    contenders: Sequence[Contender],
    own: Sequence[Mapping[str, object]],
    settings: ComparisonSettings,
    folder: Path,
    say: Say,
    keep: bool = True,
) -> ComparisonSchedule:
    """Make contenders alike, solve for their sizes, measure their steps, and count how many make up each length.

    ``keep``: write the measurements to the folder, so that the trainings have these numbers of steps.
    """
    check(settings)
    alike = made_alike(contenders, own)
    first = alike[0].experiment
    budget = settings.budget.or_of(first.train)
    lengths = tuple(length._replace(amount=length.amount * settings.scale) for length in budget.lengths)
    data = first.data.build(first.model.context)
    entered = [sized(one, data, budget.params) for one in alike]
    workers = settings.workers or default_workers([one.experiment for one in entered])
    threads = max(1, cores() // workers)
    costs = known_costs(entered, data, folder, threads, say, keep)
    epoch = data.epoch(first.data.batch, first.train.micro_batches)
    least = max(1, round(LEAST * min(1.0, settings.scale)))  # a first impression need not be equal to 2 %
    steps = [
        tuple(steps_of(length, cost.step, epoch, one.name, least) for length in lengths)
        for one, cost in zip(entered, costs, strict=True)
    ]
    shortest = min(min(counts) * cost.step.tokens for counts, cost in zip(steps, costs, strict=True))
    scheduled = []
    for one, cost, counts in zip(entered, costs, steps, strict=True):
        experiment = evaluated(one.experiment, shortest)
        batches = sum(1 for _ in experiment.validation_batches(data))
        trial = max(1, round(counts[0] * settings.share))
        once, whole = cost.evaluation * batches, min(POSITIONS, data.validation_count or 0) / cost.step.tokens
        scheduled.append(ScheduledContender(one.name, experiment, cost, counts, trial, once, cost.evaluation * whole))
    return ComparisonSchedule(tuple(scheduled), lengths, settings, workers, threads, folder)


def evaluated(experiment: Experiment, tokens: float) -> Experiment:
    """The experiment, evaluated on a part of the validation data that suits trainings of so many ``tokens``."""
    train = experiment.train
    if train.evaluate_tokens is not None:
        return experiment
    return replace(experiment, train=replace(train, evaluate_tokens=round(min(MANY, max(FEWEST, SHARE * tokens)))))


def check(settings: ComparisonSettings) -> None:
    """Refuse impossible numbers."""
    for name in ("seeds", "rates"):
        if getattr(settings, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(settings, name)}")
    if settings.workers is not None and settings.workers < 1:
        raise UserError(f"--workers must be at least 1, not {settings.workers}")
    if not 0 < settings.share <= 1:
        raise UserError(f"--share must be above 0 and at most 1, not {settings.share:g}")
    if not 0 < settings.scale <= 100:
        raise UserError(f"--scale must be above 0 and at most 100, not {settings.scale:g}")


def with_rate(optimizer: Any, factor: float) -> Any:
    """The optimizer with all its learning rates times a factor."""
    names = [name for name in ("lr", "rest_lr") if hasattr(optimizer, name)]
    return replace(optimizer, **{name: float(f"{getattr(optimizer, name) * factor:.4g}") for name in names})
