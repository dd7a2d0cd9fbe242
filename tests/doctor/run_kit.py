"""One training of a case, from its experiment to its end, with what happened on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from fault_models import Sabotage

from regard.config import to_toml
from regard.runs import Run
from regard.train import Experiment, Observer, TrainingStart, TrainingStep
from regard.train.engine import Engine
from regard.train.loop import TrainingSession, prepare
from regard.train.shard import World


class Case(NamedTuple):
    """A training with something wrong, either in its experiment or in what is done to it before its first step."""

    experiment: Experiment
    sabotage: Sabotage | None = None  # changes the engine: its model, its data
    sound: Experiment | None = None  # the same without the fault, where it is not the experiment without sabotage
    limit: int | None = None  # bytes that the process may have, to be told to whoever watches memory

    def cured(self) -> Case:
        """The same training with nothing wrong."""
        return Case(self.sound or self.experiment)


class Ended(NamedTuple):
    """A training that is over."""

    engine: Engine
    run: Run
    error: Exception | None  # what ended it early, if anything did


def trained(case: Case, folder: Path, observers: Sequence[Observer] = (), name: str | None = None) -> Ended:
    """Train a case into a run folder as `regard.train.train` does, but for the sabotage and the run's lock."""
    run = Run.create(folder, name, to_toml(case.experiment.checked()), {})
    engine = prepare(case.experiment, run, World(), time.perf_counter(), resume=False)
    if case.sabotage is not None:
        case.sabotage(engine)
    try:
        TrainingSession(engine, run, observers).run()
    except Exception as error:  # an observer's own mistake would end up here too: look at it
        return Ended(engine, run, error)
    return Ended(engine, run, None)


class Record(Observer):
    """Everything the checks need, step by step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validation: list[float] = []
        self.rates: list[float] = []
        self.gradients: list[dict[str, float]] = []  # of each parameter, its norm after clipping
        self.moves: list[dict[str, float]] = []  # of each parameter, how far it went over how long it is

    def started(self, start: TrainingStart) -> None:
        self.model = start.model
        self.before = self._weights()

    def stepped(self, step: TrainingStep) -> None:
        self.losses.append(step.loss)
        self.rates.append(step.rate)
        named = dict(self.model.named_parameters())
        self.gradients.append({name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in named.items()})
        after = self._weights()
        moved = {name: (new - self.before[name]).norm() / self.before[name].norm() for name, new in after.items()}
        self.moves.append({name: float(share) for name, share in moved.items()})
        self.before = after

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        self.validation.append(measures["validation_loss"])

    def gradient(self, within: str) -> float:
        """The norm of the gradient of all parameters whose name begins so: the median over the steps."""
        sums = [sum(n**2 for name, n in norms.items() if name.startswith(within)) for norms in self.gradients]
        return float(torch.tensor(sums).median().sqrt())

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
