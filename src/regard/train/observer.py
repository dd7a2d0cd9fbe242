"""Observers: callbacks that a training run notifies. Training imports none of them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from regard.data import Batch, Data
from regard.models import Model
from regard.runs import Run
from regard.train.experiment import Experiment
from regard.train.optimizer import Optimizer


class TrainingStart(NamedTuple):
    """The state before the first step of a session."""

    experiment: Experiment  # with its budget in steps
    run: Run
    model: Model  # not compiled: its hooks run whenever the model runs uncompiled
    device: torch.device
    dtype: torch.dtype  # of matrix products
    step: int  # 0, or the step that a resumed run continues from
    data: Data[Batch]
    optimizer: Optimizer
    lanes: int = 1  # of this process


class TrainingStep(NamedTuple):
    """One finished step."""

    step: int  # number of steps done
    loss: float
    lr: float  # the learning rate
    norm: float  # of the gradient, before clipping
    tokens: int  # since the run began
    seconds: float  # since the run began, earlier sessions included
    terms: Mapping[str, float] = MappingProxyType({})  # of the loss, each without its weight
    position: int = 0  # micro-batches that each lane has taken from the data since the run began
    rank_seconds: tuple[float, ...] = ()  # of several ranks: the work of each, without waiting for others


class TrainingResult(NamedTuple):
    """How a session ended."""

    path: Path  # the run's folder
    step: int  # steps done
    steps: int  # steps planned
    loss: float | None  # of the last logged step
    validation_loss: float | None  # of the last evaluation
    tokens: int
    seconds: float
    interrupted: bool  # by a signal: a checkpoint was saved, and `regard resume` continues from it
    until: float | None = None  # of a budget in seconds: the ``time.perf_counter()`` at which it is over


class Observer:
    """Base class of callbacks. Override any of the methods and pass instances to ``regard.train``:

        import regard

        class PrintLoss(regard.Observer):
            def stepped(self, step):
                print(f"step {step.step}: loss {step.loss:.3f}, learning rate {step.lr:.2g}")

        experiment = regard.recipe("shakespeare-small", "--data.path=text.txt", "--train.steps=3")
        regard.train(experiment, name="observed", observers=[PrintLoss()])

    Return values are ignored. With several processes, only those of rank 0 are called, and those with ``every_rank``.
    """

    every_rank: bool = False

    def started(self, start: TrainingStart) -> None:
        """Before the first step of a session."""

    def stepped(self, step: TrainingStep) -> None:
        """After every step; its time is part of the training time."""

    def changed(self, experiment: Experiment) -> None:
        """When the run has set a number in its config: the steps of a budget in seconds, the size of evaluations."""

    def evaluating(self, step: int, done: float | None) -> None:
        """After every batch of an evaluation; ``done`` is the approximate share of it, None if it is unknown."""

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """After an evaluation; ``measures`` contains ``validation_loss``."""

    def saved(self, step: int, path: Path) -> None:
        """After a checkpoint was written to the run folder ``path``."""

    def finished(self, result: TrainingResult) -> None:
        """At the end of a session, also when a signal ended it."""

    def failed(self, error: BaseException) -> None:
        """Instead of ``finished`` when an error ends the session: release resources. The error is raised afterwards."""
