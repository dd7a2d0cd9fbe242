"""How long a step takes on this machine: measured steps, and a law fitted to them that predicts others.

seconds = FLOPs / throughput + bytes / bandwidth + operations x overhead, with three constants of the machine, none of
them negative. On a GPU operations are started while others run; but a step waits for its loss before the update, and
where operations are short the device waits for the next, so the sum is nearer than the larger of the two. Relative
errors are minimized; the error that is reported is that of steps that were left out of the fit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import torch

from regard.config import override
from regard.data import Batch, TextBatch, TextConfig
from regard.errors import UserError
from regard.parallel.world import World
from regard.plan.meter import Work
from regard.plan.trace import StepTrace, trace
from regard.train import Experiment
from regard.train.device import move, synchronize
from regard.train.engine import Engine

WARM, STEPS = 3, 20  # steps before the measured ones, and at most so many of those
SECONDS = 1.0  # for the measured steps of a config
VARIANTS = 5
#: How much faster GPUs multiply 16-bit formats than float32: 16 for A100, 15 for H100 and H200 (NVIDIA's data sheets).
HALF = 15


#: A micro-batch of an experiment.
Batches = Callable[[Experiment], Batch]


class MeasuredStep(NamedTuple):
    """A step and its time."""

    work: Work
    seconds: float


class SpeedLaw(NamedTuple):
    """Seconds per FLOP, per byte and per operation, and the median relative error of steps that were left out."""

    per_flop: float  # of float32
    per_byte: float
    per_operation: float
    error: float

    def seconds(self, work: Work) -> float:
        """The time of a step."""
        return sum(each * count for each, count in zip(self, _terms(work), strict=False))

    @classmethod
    def fit(cls, measured: Sequence[MeasuredStep]) -> SpeedLaw:
        """The law of these steps; its error by leaving out one at a time."""
        if len(measured) < 2:
            raise ValueError("a law needs two measured steps at least")
        left_out = []
        for place, one in enumerate(measured):
            others = [*measured[:place], *measured[place + 1 :]]
            left_out.append(abs(cls(*_constants(others), 0.0).seconds(one.work) / one.seconds - 1))
        return cls(*_constants(measured), statistics.median(left_out))


def _terms(work: Work) -> tuple[float, float, float]:
    """FLOPs, as if all were of float32, bytes and operations."""
    return work.flops - work.half * (1 - 1 / HALF), work.bytes, float(work.operations)


def _constants(measured: Sequence[MeasuredStep]) -> tuple[float, float, float]:
    """The constants of least squared relative error among those that are not negative."""
    rows = torch.tensor([[x / one.seconds for x in _terms(one.work)] for one in measured], dtype=torch.float64)
    ones, best = torch.ones(len(rows), dtype=torch.float64), (float("inf"), (0.0, 0.0, 0.0))
    for count in range(1, min(3, len(rows)) + 1):
        for chosen in combinations(range(3), count):
            part = rows[:, list(chosen)]
            scale = part.abs().amax(0).clamp(min=1e-300)
            found = torch.linalg.lstsq(part / scale, ones[:, None]).solution[:, 0] / scale
            if bool((found >= 0).all()):
                error = float((part @ found - 1).square().sum())
                values = dict(zip(chosen, found.tolist(), strict=True))
                best = min(best, (error, (values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))))
    return best[1]


def step_work(found: StepTrace, accumulate: int) -> Work:
    """The work of a whole step."""
    return Work(*(accumulate * one + other for one, other in zip(found.micro_batch, found.update, strict=True)))


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
    return MeasuredStep(step_work(trace(experiment, batch, device), experiment.train.accumulate), seconds)


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
