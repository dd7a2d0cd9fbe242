"""A plan: what a training needs and takes, and the settings with which it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import torch

from regard.config import override
from regard.data import Batch
from regard.errors import UserError
from regard.parallel.layout import Layout
from regard.parallel.world import ONE
from regard.plan.checkpoints import Checkpoints, checkpoints
from regard.plan.hardware import UTILIZATION, Hardware
from regard.plan.heap import Allocations
from regard.plan.law import SpeedLaw
from regard.plan.layout import Memory, memory, rank_model
from regard.plan.meter import Work
from regard.plan.operations import Timeline
from regard.plan.overlap import Traffic, traffic
from regard.plan.speed import Batches, whole_step
from regard.plan.trace import CPU, Part, StepTrace, trace
from regard.train import Experiment

DEEP, PERIOD = 24, 8  # more layers than the first are extrapolated from one and two periods, if periods divide them
TOKENS_PER_PARAMETER = 20  # of a compute-optimal training (Hoffmann et al. 2022, table 3)


@dataclass(frozen=True)
class TrainingPlan:
    """A planned training."""

    experiment: Experiment
    trace: StepTrace
    layout: Layout  # of all ranks
    memory: Memory
    limit: float | None  # bytes of a device
    seconds: float | None  # of a step; None: not measured
    error: float | None  # of that, relative
    traffic: tuple[Traffic, ...]
    fix: tuple[str, ...] = ()  # options with which it fits

    @property
    def gpus(self) -> int:
        """The number of ranks."""
        return prod(self.layout.sizes)

    @property
    def micro_batches(self) -> int:
        """Of a step, over all ranks."""
        return self.experiment.train.accumulate * (self.experiment.train.lanes or self.layout.data)

    @property
    def communication(self) -> float:
        """Bytes that each rank sends, and receives, in a step."""
        return sum(one.bytes for one in self.traffic)

    @property
    def checkpoints(self) -> Checkpoints:
        """How often to save."""
        return checkpoints(self.memory.weights + self.memory.optimizer, self.gpus)

    @property
    def tokens(self) -> int:
        """Of a step, over all ranks."""
        return self.trace.targets * self.micro_batches

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
        return self.trace.micro_batch.flops * self.micro_batches

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
            "communication": {one.kind: one.record() for one in self.traffic},
            "checkpoints": self.checkpoints._asdict(),
            "gpus": self.gpus,
            "layout": asdict(self.layout),
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
    layout: Layout = ONE,
    hardware: Hardware | None = None,
    limit: float | None = None,
    law: SpeedLaw | None = None,
    fixes: bool = True,
    batch: Batch | Batches | None = None,
    device: torch.device = CPU,
) -> TrainingPlan:
    """Plan an experiment on ``gpus`` ranks, in a layout that shards weights (FSDP) unless it says otherwise.

    ``law``: of this machine, for its step time. ``batch``: a micro-batch of its data, or what gives one for changed
    sizes; a text needs none. ``device``: of that kind the step is traced.
    """
    full = layout.of(gpus)
    on_cpu = hardware is None and gpus == 1 and device.type == "cpu"

    def find(other: Experiment) -> tuple[StepTrace, StepTrace]:
        if other.data.batch != experiment.data.batch and batch is not None and not callable(batch):
            raise UserError("the rows of the batch are given")
        whole = traced(other, batch, device)
        return whole, traced(other, batch, device, full.tensor) if full.tensor > 1 else whole

    def planned(other: Experiment, found: tuple[StepTrace, StepTrace], layout: Layout) -> TrainingPlan:
        return _planned(other, *found, layout, hardware, limit, law, on_cpu=on_cpu and prod(layout.sizes) == 1)

    rank_model(experiment, full)  # for its refusals
    found = find(experiment)
    made = planned(experiment, found, full)
    if made.fits or not fixes:
        return made
    return replace(made, fix=_fix(made, found, find, planned, hardware is not None or device.type == "cuda"))


def _planned(
    experiment: Experiment,
    found: StepTrace,
    own: StepTrace,
    layout: Layout,
    hardware: Hardware | None,
    limit: float | None,
    law: SpeedLaw | None = None,
    *,
    on_cpu: bool,
) -> TrainingPlan:
    """``own``: the trace of one of the ranks of a tensor-parallel group; ``on_cpu``: with freed blocks in its heap."""
    limit = hardware.memory if limit is None and hardware is not None else limit
    model = rank_model(experiment, layout, limit)
    kinds, seconds = traffic(model, found, hardware), None
    if hardware is not None:
        flops = model.micro_batches * own.micro_batch.flops / layout.context + own.update.flops
        seconds = flops / (hardware.flops * UTILIZATION) + sum(one.exposed or 0.0 for one in kinds)
    elif law is not None:
        seconds = law.seconds(whole_step(found, model.micro_batches))
    error = law.error if law is not None and hardware is None else None
    needed = memory(model, own)
    if on_cpu:
        heap = sum(one.weight * one.peak(model.micro_batches) for one in found.allocations)
        needed = replace(needed, fragments=max(0.0, heap - needed.total))
    return TrainingPlan(experiment, found, layout, needed, limit, seconds, error, kinds)


def _fix(
    made: TrainingPlan,
    found: tuple[StepTrace, StepTrace],
    find: Callable[[Experiment], tuple[StepTrace, StepTrace]],
    planned: Callable[[Experiment, tuple[StepTrace, StepTrace], Layout], TrainingPlan],
    accelerated: bool,
) -> tuple[str, ...]:
    """The mildest options with which the training fits; () if none was found. ``accelerated``: bfloat16 runs there.

    A window is none of them: fast backends store no scores, so that it saves time and no memory.
    """
    other, options = made.experiment, list[str]()
    for candidate in _settings(made, accelerated):
        try:
            changed = override(made.experiment, candidate)
            traces = find(changed)
        except UserError:
            continue
        if planned(changed, traces, made.layout).fits:
            return tuple(candidate)
        other, found, options = changed, traces, candidate
    for layout, further in _layouts(made):
        try:
            if planned(other, found, layout).fits:
                return (*options, *further)
        except UserError:  # the model cannot have it
            continue
    return ()


def _settings(made: TrainingPlan, accelerated: bool) -> list[list[str]]:
    """Options that save memory, the mildest first; the last ones save most."""
    batch, accumulate = made.experiment.data.batch, made.experiment.train.accumulate
    sizes = [batch // 2**n for n in range(1, 12) if batch % 2**n == 0]
    smaller = [[f"--data.batch={size}", f"--train.accumulate={accumulate * batch // size}"] for size in sizes]
    half = ["--train.precision=bfloat16"] if accelerated and made.experiment.train.precision == "float32" else []
    again = ["--train.checkpointing=true"]
    candidates = [*smaller[:2], *([half] if half else []), again]
    candidates += [options + half + again for options in ([], *smaller[:2], *smaller[2:][-1:])]
    if made.experiment.model.layers > DEEP:
        candidates.insert(0, again)  # it saves most, and a trace takes seconds
    if made.gpus > 1 and made.limit is not None and made.trace.extra > made.limit:
        plain = ["--train.optimizer=adamw"]  # Muon holds all of its matrices whole
        candidates = [plain, *(options + plain for options in candidates)]
    return [list(options) for options in dict.fromkeys(map(tuple, candidates))]


def _layouts(made: TrainingPlan) -> Iterator[tuple[Layout, tuple[str, ...]]]:
    """Layouts that need less memory for each rank, with their options: of as many ranks, then of more.

    Ranks that share rows train on fewer of them, so that a rank takes more micro-batches for the same lanes.
    """
    layout, gpus = made.layout, made.gpus
    given = () if layout == ONE.of(gpus) else ("--layout.shard=none",)
    one = replace(layout, replicate=1, shard=None)
    if layout.replicate > 1:
        yield one.of(gpus), ("--layout.replicate=1", *given)
    lanes = made.experiment.train.lanes or layout.data
    for ranks in (2**n for n in range(1, 8)):
        if layout.context == 1 and (layout.shard or 1) % ranks == 0:
            sharing = replace(one, context=ranks).of(gpus)
            keep = ("--layout.replicate=1",) * (layout.replicate > 1)
            yield sharing, (f"--layout.context={ranks}", *keep, *given, f"--train.lanes={lanes}")
    others = gpus // (layout.shard or 1)
    for ranks in (2**n for n in range(1, 13)):
        if ranks > gpus and ranks % others == 0:
            yield replace(layout, shard=None).of(ranks), (f"--gpus={ranks}", *given)


def traced(
    experiment: Experiment, batch: Batch | Batches | None = None, device: torch.device = CPU, tensor: int = 1
) -> StepTrace:
    """The trace of a step; of a deep model by two shallow ones, as its layers repeat. ``tensor``: as for ``trace``."""
    batch = batch(experiment) if callable(batch) else batch
    layers = experiment.model.layers
    if layers <= DEEP or layers % PERIOD or experiment.model.with_layers(PERIOD).layers != PERIOD:
        return trace(experiment, batch, device, tensor)
    models = (experiment.model.with_layers(count) for count in (PERIOD, 2 * PERIOD))
    one, two = (trace(replace(experiment, model=model), batch, device, tensor) for model in models)
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

    fields = {name: further(getattr(one, name), getattr(two, name)) for name in StepTrace._fields if name != "stream"}
    fields |= {"targets": one.targets, "block": one.block, "stream": one.stream}
    return StepTrace(**fields)
