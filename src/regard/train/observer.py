"""Observers: whoever wants to know how a run goes. Training tells them, and knows nothing about them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from regard.models import Model
from regard.runs import Run
from regard.train.experiment import Experiment


class TrainingStart(NamedTuple):
    """A run that is about to take its first step of this sitting."""

    experiment: Experiment  # with its budget in steps
    run: Run
    model: Model  # as it was built, never compiled: hooks on it fire when it runs uncompiled
    device: torch.device
    dtype: torch.dtype  # that matrix products are done in
    step: int  # 0, or where a resumed run goes on
    data: Any = None  # what it trains on, built


class TrainingStep(NamedTuple):
    """One finished step."""

    step: int  # how many are done
    loss: float
    rate: float  # the learning rate used
    norm: float  # of the gradient, before clipping
    tokens: int  # seen since the run began
    seconds: float  # spent since the run began, earlier sittings included
    terms: Mapping[str, float] = MappingProxyType({})  # of the loss, each before its weight
    position: int = 0  # micro-batches taken from the data since the run began


class TrainingResult(NamedTuple):
    """How a sitting ended."""

    path: Path  # the run's folder
    step: int  # updates done
    steps: int  # updates wanted
    loss: float | None  # of the last logged step
    validation_loss: float | None  # of the last evaluation
    tokens: int
    seconds: float
    interrupted: bool  # by a signal: a checkpoint was saved, and `regard resume` goes on from it


class Observer:
    """Override what you want to hear. Nothing an observer does can change the run: it is told, not asked."""

    def started(self, start: TrainingStart) -> None:
        """Before the first step of this sitting."""

    def stepped(self, step: TrainingStep) -> None:
        """After every step: be quick."""

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """After an evaluation: `measures` has `validation_loss`."""

    def saved(self, step: int, path: Path) -> None:
        """After a checkpoint was written in the run `path`."""

    def finished(self, result: TrainingResult) -> None:
        """At the end, or when a signal ended the sitting."""

    def failed(self, error: BaseException) -> None:
        """When an error ends the sitting, instead of `finished`: let go of what you hold; the error goes on."""
