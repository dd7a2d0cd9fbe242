"""Measured steps, for a law of time (``law.py``), and smaller variants of an experiment to measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from regard.config import override
from regard.data import Batch, TextBatch, TextConfig
from regard.errors import UserError
from regard.parallel.world import World
from regard.plan.law import MeasuredStep, StepWork
from regard.plan.meter import Work
from regard.plan.trace import StepTrace, trace
from regard.train import Experiment
from regard.train.device import move, synchronize
from regard.train.engine import Engine

WARM, STEPS = 3, 20  # steps before the measured ones, and at most so many of those
SECONDS = 1.0  # for the measured steps of a config
VARIANTS = 5
#: A micro-batch of an experiment.
Batches = Callable[[Experiment], Batch]


def step_work(found: StepTrace, accumulate: int) -> Work:
    """The work of a whole step."""
    return Work(*(accumulate * one + other for one, other in zip(found.micro_batch, found.update, strict=True)))


def whole_step(found: StepTrace, accumulate: int) -> StepWork:
    """What decides the time of a whole step."""
    return StepWork(found.timeline, accumulate, step_work(found, accumulate).flops)


class RepeatedBatch:
    """Data that gives one batch again and again."""

    dynamic_shapes, validation_count = False, 0

    def __init__(self, batch: Batch):
        self._batch = batch

    def batch(self, step: int, **_: object) -> Batch:
        return self._batch

    def to(self, device: torch.device) -> None:
        self._batch = move(self._batch, device)


def measure(
    experiment: Experiment, batch: Batch, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> MeasuredStep:
    """A few real steps on the same batch."""
    seconds = step_seconds(experiment, batch, device, clock)
    return MeasuredStep(whole_step(trace(experiment, batch, device), experiment.train.accumulate), seconds)


def step_seconds(
    experiment: Experiment, batch: Batch, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The median time of a few real steps on the same batch."""
    experiment = replace(experiment, train=replace(experiment.train, compile=False))
    engine = Engine(experiment, RepeatedBatch(batch), World(device=device))  # type: ignore[arg-type]
    engine.progress.step = 1
    times: list[float] = []
    while len(times) < WARM + STEPS and (len(times) <= WARM or sum(times[WARM:]) < SECONDS):
        synchronize(device)
        began = clock()
        engine.update()
        synchronize(device)
        times.append(clock() - began)
    return statistics.median(times[WARM:])


def random_batch(experiment: Experiment) -> Batch:
    """A batch of random tokens."""
    draw = torch.Generator().manual_seed(1)
    shape = (experiment.data.batch, experiment.model.context + 1)
    tokens = torch.randint(experiment.model.vocabulary, shape, generator=draw)
    return TextBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def batches_of(experiment: Experiment) -> tuple[Experiment, Batches]:
    """The experiment with the sizes that its data have, and what gives its micro-batches.

    Those of a text are random tokens; other data are read, as only they know their shapes.
    """
    if isinstance(experiment.data, TextConfig):
        return experiment, random_batch
    if experiment.init is not None:
        raise UserError(
            f"a plan does not read {experiment.init}; plan the model by its config: --init none --model NAME"
        )
    data = experiment.data.build(experiment.model.context)
    experiment = replace(experiment, task=experiment.task.fit(data))
    return replace(experiment, model=experiment.model_for(data)), lambda one: one.batch(data, 0)


def variants(experiment: Experiment, largest: float, batches: Batches = random_batch) -> list[Experiment]:
    """Smaller experiments of the same kind, for a measurement: at most ``largest`` FLOPs a step.

    Sizes are halved in turn until a step is short enough; then each variant halves another one.
    """
    found = experiment
    for turn in range(200):
        if trace(found, batches(found)).micro_batch.flops * found.train.accumulate <= largest:
            break
        found = _changed(found, ("accumulate", "batch", "layers", "width")[turn % 4], 0.5)
    last = ("context", 0.5) if batches is random_batch else ("batch", 0.25)  # data were read for one context
    changes = [("layers", 0.5), ("width", 0.5), ("batch", 0.5), last]
    return [found, *(_changed(found, name, factor) for name, factor in changes)][:VARIANTS]


def _changed(experiment: Experiment, name: str, factor: float) -> Experiment:
    """The experiment with one size changed, or as it is where that cannot be."""
    if name == "batch":
        return override(experiment, [f"--data.batch={max(1, int(experiment.data.batch * factor))}"])
    if name == "accumulate":
        return override(experiment, [f"--train.accumulate={max(1, int(experiment.train.accumulate * factor))}"])
    model = experiment.model
    step = getattr(model, "heads", 1) * 8 if name == "width" else 1
    value = max(step, int(getattr(model, name, 0) * factor) // step * step)
    try:
        return override(experiment, [f"--model.{name}={value}"]).checked()
    except UserError:
        return experiment
