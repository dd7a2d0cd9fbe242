"""How long a step takes on this machine: measured steps, and a law fitted to them that predicts others.

seconds = FLOPs / throughput + bytes / bandwidth + operations x overhead, with three constants of the machine, none of
them negative. Relative errors are minimized; the error that is reported is that of steps that were left out of the fit.
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
from regard.plan.trace import StepTrace, Work, trace
from regard.train import Experiment
from regard.train.device import move, synchronize
from regard.train.engine import Engine
from regard.train.shard import World

WARM, STEPS = 2, 5  # steps before the measured ones, and at most so many of those
SECONDS = 1.5  # for the measured steps of a config
VARIANTS = 5


class MeasuredStep(NamedTuple):
    """A step and its time."""

    work: Work
    seconds: float


class SpeedLaw(NamedTuple):
    """Seconds per FLOP, per byte and per operation, and the median relative error of steps that were left out."""

    per_flop: float
    per_byte: float
    per_operation: float
    error: float

    def seconds(self, work: Work) -> float:
        return sum(a * b for a, b in zip(self[:3], work, strict=True))

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


def _constants(measured: Sequence[MeasuredStep]) -> tuple[float, float, float]:
    """The constants of least squared relative error among those that are not negative."""
    rows = torch.tensor([[x / one.seconds for x in one.work] for one in measured], dtype=torch.float64)
    ones, best = torch.ones(len(rows), dtype=torch.float64), (float("inf"), (0.0, 0.0, 0.0))
    for count in (1, 2, 3):
        for chosen in combinations(range(3), min(count, len(rows))):
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
    flops, size, operations = (
        accumulate * one + other for one, other in zip(found.micro_batch, found.update, strict=True)
    )
    return Work(flops, size, int(operations))


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
    work = step_work(trace(experiment, batch), experiment.train.accumulate)
    return MeasuredStep(work, statistics.median(times[WARM:]))


def random_batch(experiment: Experiment) -> Batch:
    """A batch of random tokens."""
    draw = torch.Generator().manual_seed(1)
    shape = (experiment.data.batch, experiment.model.context + 1)
    tokens = torch.randint(experiment.model.vocabulary, shape, generator=draw)
    return TextBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def variants(experiment: Experiment, largest: float) -> list[Experiment]:
    """Smaller experiments of the same kind, for a measurement: at most ``largest`` FLOPs a step.

    Sizes are halved in turn until a step is short enough; then each variant halves or doubles another one.
    """
    if not isinstance(experiment.data, TextConfig):
        raise UserError(f"only steps on text are measured for a plan, and the data are {experiment.data.kind}")
    found = experiment
    for turn in range(200):
        if trace(found).micro_batch.flops * found.train.accumulate <= largest:
            break
        found = _changed(found, ("accumulate", "batch", "layers", "width")[turn % 4], 0.5)
    changes = [("layers", 0.5), ("width", 0.5), ("batch", 0.5), ("context", 0.5)]
    return [found, *(_changed(found, name, factor) for name, factor in changes)][:VARIANTS]


def _changed(experiment: Experiment, name: str, factor: float) -> Experiment:
    """The experiment with one size changed, or as it is where that cannot be."""
    model = experiment.model
    if name in ("batch", "accumulate"):
        now = experiment.data.batch if name == "batch" else experiment.train.accumulate
        key = (
            f"--data.batch={max(1, int(now * factor))}"
            if name == "batch"
            else f"--train.accumulate={max(1, int(now * factor))}"
        )
        return override(experiment, [key])
    heads = getattr(model, "heads", 1)
    step = heads * 8 if name == "width" else 1
    value = max(step, int(getattr(model, name) * factor) // step * step)
    try:
        return override(experiment, [f"--model.{name}={value}"]).checked()
    except UserError:
        return experiment
