"""One training step without memory or arithmetic: every operation is traced on tensors that have shapes only.

PyTorch's fake tensors run the real code of model, task and optimizer, so whatever a config switches on is counted:
FLOPs by PyTorch's own counter, bytes that operations read and write, and the largest sum of live storages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from regard.data import Batch, TextBatch, TextConfig
from regard.errors import UserError
from regard.models import LanguageModel, Model, describe
from regard.models.shapes import SkipInit
from regard.parallel.apply import cut
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.plan.formulas import FORMULAS, workspace
from regard.plan.heap import Allocations
from regard.plan.meter import Meter, Work, stored
from regard.plan.operations import Timeline, TimelineSegment
from regard.plan.recurrent import recurrent_counted
from regard.plan.visible import counted
from regard.tasks import Task
from regard.train import Experiment
from regard.train.device import move

CPU = torch.device("cpu")
REAL = 2**26  # parameters of a model that makes a real step


class Part(NamedTuple):
    """What one kind of module costs in a step, over all modules of that kind."""

    parameters: int
    flops: float  # of the forward pass
    activations: int  # bytes that are kept for the backward pass


class Loss(nn.Module):
    """The loss of a micro-batch as one module, so that PyTorch's counter names those inside of it."""

    def __init__(self, model: Model, task: Task):
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch, count: int) -> Tensor:
        terms = self.task.terms(self.model, batch)
        return torch.stack([term.total * (term.weight / count) for term in terms.values()]).sum()


class StepTrace(NamedTuple):
    """A micro-batch forward and backward, and an update."""

    parts: dict[str, Part]
    micro_batch: Work
    update: Work
    timeline: Timeline
    allocations: tuple[Allocations, ...]
    targets: int  # of a micro-batch
    parameters: int
    weights: int  # bytes, with buffers
    gradients: int
    optimizer: int
    copies: int  # bytes of the weights in the format of matrix products, if it is another one
    activations: int  # bytes at the peak of forward and backward pass, besides weights, their copies and gradients
    growing: int  # the same with gradients, which grow while activations are freed
    extra: int  # bytes that an update needs besides weights, gradients and optimizer state
    workspace: int  # bytes that the library of matrix products keeps
    block: int  # bytes of the weights of the largest block
    cache: int  # bytes of the KV cache per token, in the format of the activations
    stream: tuple[int, ...]  # the shape of what the first block reads: [B, N, C]; () if there is no block


def trace(experiment: Experiment, batch: Batch | None = None, device: torch.device = CPU, tensor: int = 1) -> StepTrace:
    """One step of an experiment on ``device``, whose kernels need different memory.

    ``tensor``: of the first of so many tensor-parallel ranks, without the table of parts.

    ``batch``: a micro-batch; None: tokens of its sizes, which a text needs only. A model whose operations depend on
    numbers, such as a router of experts, makes a real step, if it is small.
    """
    if batch is None:
        if not isinstance(experiment.data, TextConfig):
            raise UserError(f"{experiment.data.kind} data gives no batch without being read; pass one")
        tokens = torch.zeros(experiment.data.batch, experiment.model.context, dtype=torch.int64)
        batch = TextBatch(tokens, tokens)
    with FakeTensorMode() as fake:
        try:
            with device, SkipInit():  # made there, as fake parameters cannot be moved
                model = _model(experiment, tensor)
            fakes = tree_map_only(Tensor, lambda x: fake.from_tensor(x).to(device), batch)
            return _trace(experiment, model, fakes, parts=tensor == 1)
        except DataDependentOutputException as problem:
            reason = f"its operations depend on numbers: {problem}"
        except (UnsupportedOperatorException, DynamicOutputShapeException, RuntimeError) as problem:
            reason = str(problem).splitlines()[0]
    if describe(experiment.model)["parameters"] > REAL:
        raise UserError(f"a step of this {experiment.model.kind} cannot be traced ({reason}); plan a smaller one")
    model = _model(experiment, tensor).to(device)
    return _trace(experiment, model, move(batch, device), parts=tensor == 1)


def _model(experiment: Experiment, tensor: int = 1) -> Model:
    model = experiment.model.build()
    experiment.train.adapt.apply(model)
    cut(model, World(size=tensor, layout=Layout(shard=1, tensor=tensor)))
    model.checkpointing = experiment.train.checkpointing
    return model


class MeterReading(NamedTuple):
    """What a meter has counted so far."""

    work: Work
    operations: int  # in the timeline
    events: int  # of memory
    live: int  # bytes

    @classmethod
    def of(cls, meter: Meter) -> MeterReading:
        """Now."""
        return cls(meter.work, len(meter.timeline), len(meter.events), meter.live)


def _trace(experiment: Experiment, model: Model, batch: Batch, *, parts: bool = True) -> StepTrace:
    meter, module = Meter(model), Loss(model, experiment.task.build())
    device, count = next(model.parameters()).device, max(1, batch.targets.numel())
    made = MeterReading.of(meter)
    optimizer = experiment.train.optimizer.build(model)
    weights = meter.live
    model.train()
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(experiment.train.precision)
    autocast = torch.autocast(device.type, dtype) if dtype else nullcontext()
    found = _parts(module, batch, count, autocast) if parts else {}
    with counted(), recurrent_counted(device), meter:
        stream = _backward(meter, module, batch, count, autocast)
        computed, copies = MeterReading.of(meter), meter.copies
        activations, growing = (peak - weights - copies for peak in (meter.peak, meter.growing))
        gradients = _zero_gradients(model)
        given = MeterReading.of(meter)
        optimizer.step(1.0)  # the first one makes the state
        updated, meter.peak = MeterReading.of(meter), meter.live
        torch._foreach_mul_(gradients, torch.nn.utils.get_total_norm(gradients, foreach=device.type == "cuda"))
        optimizer.step(1.0)
    timeline = (meter.timeline[: computed.operations], meter.timeline[updated.operations :])
    ends = (made.events, computed.events, given.events, updated.events)
    element = dtype.itemsize if dtype else 4
    return StepTrace(
        parts=found,
        micro_batch=computed.work,
        update=meter.work.minus(updated.work),
        timeline=Timeline(*((TimelineSegment.of(part),) for part in timeline)),
        allocations=(_allocations(meter, *ends),),
        targets=count,
        parameters=sum(p.numel() for p in model.parameters()),
        weights=weights,
        gradients=sum(map(stored, gradients)),
        optimizer=sum(map(stored, optimizer.state().values())),
        copies=copies,
        activations=activations,
        growing=growing,
        extra=meter.peak - updated.live,
        workspace=workspace(device),
        block=max((sum(map(stored, block.parameters())) for block in model.blocks), default=0),
        cache=element * model.cache_per_token if isinstance(model, LanguageModel) else 0,
        stream=stream,
    )


def _backward(
    meter: Meter, module: Loss, batch: Batch, count: int, autocast: AbstractContextManager
) -> tuple[int, ...]:
    """A micro-batch forward and backward. The shape of what the first block reads; () if there is no block."""
    shapes: list[tuple[int, ...]] = []
    trained = [p for p in module.parameters() if p.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(meter.accumulated) for p in trained]
    for block in list(module.model.blocks)[:1]:
        hooks.append(block.register_forward_pre_hook(lambda _, given: shapes.extend(tuple(x.shape) for x in given[:1])))
    with autocast:
        loss = module(batch, count)
    loss.backward()
    for hook in hooks:
        hook.remove()
    return shapes[0] if shapes else ()


def _zero_gradients(model: Model) -> list[Tensor]:
    """Gradients of all parameters that are trained, for an update."""
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p)
    return [p.grad for p in model.parameters() if p.grad is not None]


def _allocations(meter: Meter, made: int, computed: int, given: int, updated: int) -> Allocations:
    """The events of memory, by what was done meanwhile."""
    events = meter.events
    return Allocations(
        events[:made], events[made:computed], frozenset(meter.kept), events[given:updated], events[updated:]
    )


def _parts(module: Loss, batch: Batch, count: int, autocast: AbstractContextManager) -> dict[str, Part]:
    """The costs of the children of the model, and of those of its blocks, all blocks together, in a forward pass.

    This is a separate pass: the counter's hooks keep the fast paths of some layers from being used. Empty if they fail.
    """
    model, meter, saved = module.model, Meter(module.model), defaultdict[str, int](int)
    device = batch.targets.device
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage() not in meter.weights:
            meter.weights.add(x.untyped_storage())  # it is counted once
            saved[max(counter.mod_tracker.parents, key=len)] += meter.sizes.get(x.untyped_storage(), stored(x))
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with counted(), recurrent_counted(device), counter, meter, hooks, autocast:
        try:
            module(batch, count)
        except AssertionError:  # the counter's hooks cannot enter functions that compute gradients of their own
            return {}
    flops = {name: float(sum(counts.values())) for name, counts in counter.get_flop_counts().items()}
    found, owned, rest = dict[str, Part](), set[int](), Part(0, flops["Global"], sum(saved.values()))
    for name, child in _units(model):
        own = [p for p in child.parameters() if id(p) not in owned]  # tied weights are the first one's
        owned.update(map(id, own))
        path = f"{Loss.__name__}.model.{name}"
        kept = sum(size for place, size in saved.items() if f"{place}.".startswith(f"{path}."))
        one = Part(sum(p.numel() for p in own), flops.get(path, 0.0), kept)
        kind = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        known = found.get(kind, Part(0, 0.0, 0))
        found[kind] = Part(known[0] + one[0], known[1] + one[1], known[2] + one[2])
        rest = Part(0, rest.flops - one.flops, rest.activations - one.activations)
    return {name: part for name, part in {**found, "other": rest}.items() if any(part)}


def _units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The children of the model that hold no blocks, and those of its blocks."""
    blocks = set(map(id, getattr(model, "blocks", ())))

    def visit(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        inside = any(id(one) in blocks for one in module.modules())
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            if id(module) in blocks or not any(id(one) in blocks for one in child.modules()):
                yield path, child
            elif inside:
                yield from visit(path, child)

    yield from visit("", model)
