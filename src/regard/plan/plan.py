"""A plan: what a training needs and takes, and the settings with which it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from regard.config import override
from regard.data import Batch
from regard.errors import UserError
from regard.plan.hardware import UTILIZATION, Hardware
from regard.plan.heap import Allocations
from regard.plan.law import SpeedLaw
from regard.plan.meter import Work
from regard.plan.operations import Timeline
from regard.plan.speed import Batches, step_work, whole_step
from regard.plan.trace import CPU, Part, StepTrace, trace
from regard.train import Experiment

DEEP, PERIOD = 24, 8  # more layers than the first are extrapolated from one and two periods, if periods divide them
TOKENS_PER_PARAMETER = 20  # of a compute-optimal training (Hoffmann et al. 2022, table 3)
HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Memory:
    """Bytes on each device at the peak of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    copies: float = 0.0  # weights in the format of products, or whole weights of a block of sharded ones
    workspace: float = 0.0  # of matrix products
    fragments: float = 0.0  # freed blocks that later tensors do not fit into, on a CPU

    @property
    def total(self) -> float:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.copies
            + self.workspace
            + self.fragments
        )


@dataclass(frozen=True)
class TrainingPlan:
    """A planned training."""

    experiment: Experiment
    trace: StepTrace
    gpus: int
    memory: Memory
    limit: float | None  # bytes of a device
    seconds: float | None  # of a step; None: not measured
    error: float | None  # of that, relative
    communication: float  # bytes that each rank receives in a step
    fix: tuple[str, ...] = ()  # options with which it fits

    @property
    def tokens(self) -> int:
        """Of a step, over all ranks."""
        return self.trace.targets * self.experiment.train.accumulate * self.gpus

    @property
    def steps(self) -> int | None:
        train = self.experiment.train
        if train.tokens is not None:
            return -(-train.tokens // self.tokens)
        if train.seconds is not None:
            return round(train.seconds / self.seconds) if self.seconds else None
        return train.steps if train.epochs is None else None

    @property
    def flops(self) -> float:
        """Of a step, over all ranks."""
        return self.trace.micro_batch.flops * self.experiment.train.accumulate * self.gpus

    @property
    def fits(self) -> bool:
        return self.limit is None or self.memory.total <= self.limit

    def record(self) -> dict[str, Any]:
        """The numbers, for a program."""
        steps = self.steps
        return {
            "parameters": self.trace.parameters,
            "parts": {name: part._asdict() for name, part in self.trace.parts.items()},
            "flops_per_token": self.flops / self.tokens,
            "flops_per_step": self.flops,
            "tokens_per_step": self.tokens,
            "steps": steps,
            "tokens": None if steps is None else steps * self.tokens,
            "flops": None if steps is None else steps * self.flops,
            "memory": {**asdict(self.memory), "total": self.memory.total, "limit": self.limit},
            "cache_bytes_per_token": self.trace.cache,
            "communication_bytes_per_step": self.communication,
            "gpus": self.gpus,
            "seconds_per_step": self.seconds,
            "seconds": None if steps is None or self.seconds is None else steps * self.seconds,
            "error": self.error,
            "compute_optimal_tokens": TOKENS_PER_PARAMETER * self.trace.parameters,
            "fits": self.fits,
            "fix": list(self.fix),
        }


def plan(
    experiment: Experiment,
    *,
    gpus: int = 1,
    hardware: Hardware | None = None,
    limit: float | None = None,
    law: SpeedLaw | None = None,
    fixes: bool = True,
    batch: Batch | Batches | None = None,
    device: torch.device = CPU,
) -> TrainingPlan:
    """Plan an experiment on ``gpus`` ranks with sharded weights (FSDP). ``law``: of this machine, for its step time.

    ``batch``: a micro-batch of its data, or what gives one for changed sizes; a text needs none. ``device``: of that
    kind the step is traced.
    """
    on_cpu = hardware is None and gpus == 1 and device.type == "cpu"
    made = _planned(experiment, traced(experiment, batch, device), gpus, hardware, limit, law, on_cpu=on_cpu)
    if made.fits or not fixes:
        return made

    def fits(other: Experiment, found: StepTrace, ranks: int) -> bool:
        return _planned(other, found, ranks, hardware, limit, law, on_cpu=on_cpu and ranks == 1).fits

    def find(other: Experiment) -> StepTrace:
        if other.data.batch != experiment.data.batch and batch is not None and not callable(batch):
            raise UserError("the rows of the batch are given")
        return traced(other, batch, device)

    return replace(made, fix=_fix(made, find, fits, hardware is not None or device.type == "cuda"))


def _planned(
    experiment: Experiment,
    found: StepTrace,
    gpus: int,
    hardware: Hardware | None,
    limit: float | None,
    law: SpeedLaw | None = None,
    *,
    on_cpu: bool,
) -> TrainingPlan:
    accumulate, half = experiment.train.accumulate, experiment.train.precision in HALF
    if gpus == 1:  # gradients take the place of activations, unless they are there from an earlier micro-batch
        activations = found.activations if accumulate > 1 else found.growing - found.gradients
        copies = float(found.copies)
    else:  # the whole weights of two blocks are there at a time, and the gradients of one
        activations, copies = found.activations, found.block * (1.0 if half else 2.0) + found.block
    # An update needs its memory when activations and copies are gone.
    activations = max(activations, found.extra / gpus - copies)
    stored = (found.weights / gpus, found.gradients / gpus, found.optimizer / gpus)
    memory = Memory(*stored, activations, copies, found.workspace)
    if on_cpu:
        heap = sum(one.weight * one.peak(accumulate) for one in found.allocations)
        memory = replace(memory, fragments=max(0.0, heap - memory.total))
    limit = hardware.memory if limit is None and hardware is not None else limit
    # Weights are gathered in both passes, and gradients reduced once: each rank receives what it does not have.
    each = 0.0 if gpus == 1 else (2.0 * found.weights * (0.5 if half else 1.0) + found.gradients) * (gpus - 1) / gpus
    work, seconds = step_work(found, accumulate), None
    if hardware is not None:
        seconds = max(work.flops / (hardware.flops * UTILIZATION), accumulate * each / hardware.link)
    elif law is not None:
        seconds = law.seconds(whole_step(found, accumulate))
    error = law.error if law is not None and hardware is None else None
    return TrainingPlan(experiment, found, gpus, memory, limit, seconds, error, each)


def _fix(
    made: TrainingPlan,
    find: Callable[[Experiment], StepTrace],
    fits: Callable[[Experiment, StepTrace, int], bool],
    accelerated: bool,
) -> tuple[str, ...]:
    """The mildest options with which the training fits; () if none was found. ``accelerated``: bfloat16 runs there.

    A window is none of them: fast backends store no scores, so that it saves time and no memory.
    """
    batch, accumulate = made.experiment.data.batch, made.experiment.train.accumulate
    sizes = [batch // 2**n for n in range(1, 12) if batch % 2**n == 0]
    smaller = [[f"--data.batch={size}", f"--train.accumulate={accumulate * batch // size}"] for size in sizes]
    half = ["--train.precision=bfloat16"] if accelerated and made.experiment.train.precision == "float32" else []
    again = ["--train.checkpointing=true"]
    candidates = [*smaller[:2], *([half] if half else []), again]
    candidates += [options + half + again for options in ([], *smaller[:2], *smaller[2:][-1:])]
    if made.experiment.model.layers > DEEP:
        candidates.insert(0, again)  # it saves most, and a trace takes seconds
    last: tuple[Experiment, StepTrace, list[str]] | None = None
    for options in candidates:
        try:
            other = override(made.experiment, options)
            found = find(other)
        except UserError:
            continue
        if fits(other, found, made.gpus):
            return tuple(options)
        last = other, found, options
    for ranks in (2**n for n in range(1, 13)):
        if last is not None and ranks > made.gpus and fits(*last[:2], ranks):
            return (*last[2], f"--gpus={ranks}")
    return ()


def traced(experiment: Experiment, batch: Batch | Batches | None = None, device: torch.device = CPU) -> StepTrace:
    """The trace of a step; of a deep model by two shallow ones, as its layers repeat."""
    batch = batch(experiment) if callable(batch) else batch
    layers = experiment.model.layers
    if layers <= DEEP or layers % PERIOD or experiment.model.with_layers(PERIOD).layers != PERIOD:
        return trace(experiment, batch, device)
    models = (experiment.model.with_layers(count) for count in (PERIOD, 2 * PERIOD))
    one, two = (trace(replace(experiment, model=model), batch, device) for model in models)
    times = layers // PERIOD - 1

    def further(a: Any, b: Any) -> Any:
        if isinstance(a, int | float):
            return a + times * (b - a)
        if isinstance(a, Timeline):
            return a.further(b, times)
        if isinstance(a, tuple) and a and isinstance(a[0], Allocations):
            return (a[0]._replace(weight=1 - times), b[0]._replace(weight=times))
        if isinstance(a, dict):
            return {name: further(a.get(name, Part(0, 0.0, 0)), b[name]) for name in b}
        return type(a)(*map(further, a, b)) if isinstance(a, Part | Work) else b

    fields = {name: further(getattr(one, name), getattr(two, name)) for name in StepTrace._fields}
    return StepTrace(**{**fields, "targets": one.targets, "block": one.block})
