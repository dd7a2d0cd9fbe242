"""One training step without memory or arithmetic: every operation is traced on tensors that have shapes only.

PyTorch's fake tensors run the real code of model, task and optimizer, so whatever a config switches on is counted:
FLOPs by PyTorch's own counter, bytes that operations read and write, and the largest sum of live storages.
"""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from regard.data import Batch, TextBatch, TextConfig
from regard.errors import UserError
from regard.models import LanguageModel, Model, describe
from regard.models.shapes import SkipInit
from regard.plan.formulas import FORMULAS
from regard.tasks import Task
from regard.train import Experiment

REAL = 2**26  # parameters of a model that makes a real step


class Part(NamedTuple):
    """What one kind of module costs in a step, over all modules of that kind."""

    parameters: int
    flops: float  # of the forward pass
    activations: int  # bytes that are kept for the backward pass


class Work(NamedTuple):
    """What a step does, as far as it decides its time."""

    flops: float
    bytes: float  # read and written by operations
    operations: int

    def minus(self, other: Work) -> Work:
        return Work(self.flops - other.flops, self.bytes - other.bytes, self.operations - other.operations)


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
    targets: int  # of a micro-batch
    parameters: int
    weights: int  # bytes, with buffers
    gradients: int
    optimizer: int
    copies: int  # bytes of the weights in the format of matrix products, if it is another one
    activations: int  # bytes at the peak of forward and backward pass, besides weights, their copies and gradients
    growing: int  # the same with gradients, which grow while activations are freed
    extra: int  # bytes that an update needs besides weights, gradients and optimizer state
    block: int  # bytes of the weights of the largest block
    cache: int  # bytes of the KV cache per token, in the format of the activations


def _tensors(tree: object) -> list[Tensor]:
    return [x for x in tree_iter(tree) if isinstance(x, Tensor)]


class Meter(TorchDispatchMode):
    """Counts operations and their bytes, and follows the storages that live."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.flops, self.bytes, self.operations = 0.0, 0.0, 0
        self.live = self.peak = self.gradients = self.growing = self.copies = 0
        self.weights: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()  # and their copies in another format
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for x in (*model.parameters(), *model.buffers()):
            self.follow(x)
            self.weights.add(x.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors, made = _tensors((args, kwargs)), _tensors(out)
        given = [x.untyped_storage() for x in tensors]
        new = [x for x in made if not any(x.untyped_storage() is one for one in given)]
        if not new and not (made and func._schema.is_mutable):
            return out  # a view, or a question about a tensor
        self.operations += 1
        packet = func._overloadpacket
        if packet in FORMULAS:
            self.flops += FORMULAS[packet](*args, **(kwargs or {}))
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        self.bytes += sum(float(x.numel() * x.element_size()) for x in (*tensors, *made))
        for x in new:
            self.follow(x)
            if func is torch.ops.aten._to_copy.default and all(one in self.weights for one in given):
                self.copies += x.untyped_storage().nbytes()
                self.weights.add(x.untyped_storage())
        return out

    @property
    def work(self) -> Work:
        return Work(self.flops, self.bytes, self.operations)

    def accumulated(self, parameter: Tensor) -> None:
        """Count a gradient, and free it, so that it is not counted among activations."""
        assert parameter.grad is not None
        self.gradients += parameter.grad.untyped_storage().nbytes()
        self.growing = max(self.growing, self.live + self.gradients)
        parameter.grad = None

    def follow(self, x: Tensor) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = x.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            self.live += storage.nbytes()
            self.peak, self.growing = max(self.peak, self.live), max(self.growing, self.live + self.gradients)
            weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size: int) -> None:
        self.live -= size


def trace(experiment: Experiment, batch: Batch | None = None) -> StepTrace:
    """One step of an experiment. ``batch``: a micro-batch; None: tokens of its sizes, which a text needs only.

    A model whose operations depend on numbers, such as a router of experts, makes a real step, if it is small.
    """
    if batch is None:
        if not isinstance(experiment.data, TextConfig):
            raise UserError(f"{experiment.data.kind} data gives no batch without being read; pass one")
        tokens = torch.zeros(experiment.data.batch, experiment.model.context, dtype=torch.int64)
        batch = TextBatch(tokens, tokens)
    with FakeTensorMode() as fake:
        try:
            with SkipInit():
                model = _model(experiment)
            return _trace(experiment, model, tree_map_only(Tensor, fake.from_tensor, batch))
        except DataDependentOutputException as problem:
            reason = f"its operations depend on numbers: {problem}"
        except (UnsupportedOperatorException, DynamicOutputShapeException, RuntimeError) as problem:
            reason = str(problem).splitlines()[0]
    if describe(experiment.model)["parameters"] > REAL:
        raise UserError(f"a step of this {experiment.model.kind} cannot be traced ({reason}); plan a smaller one")
    return _trace(experiment, _model(experiment), batch)


def _model(experiment: Experiment) -> Model:
    model = experiment.model.build()
    experiment.train.adapt.apply(model)
    model.checkpointing = experiment.train.checkpointing
    return model


def _trace(experiment: Experiment, model: Model, batch: Batch) -> StepTrace:
    parameters = list(model.parameters())
    meter, module = Meter(model), Loss(model, experiment.task.build())
    optimizer = experiment.train.optimizer.build(model)
    weights = meter.live
    model.train()
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(experiment.train.precision)
    autocast = torch.autocast("cpu", dtype) if dtype else nullcontext()
    count = max(1, batch.targets.numel())
    hooks = [p.register_post_accumulate_grad_hook(meter.accumulated) for p in parameters if p.requires_grad]
    parts = _parts(module, batch, count, autocast)
    with meter:
        with autocast:
            loss = module(batch, count)
        loss.backward()
        del loss
        micro_batch = meter.work
        activations, growing = (peak - weights - meter.copies for peak in (meter.peak, meter.growing))
        for hook, p in zip(hooks, (p for p in parameters if p.requires_grad), strict=True):
            hook.remove()
            p.grad = torch.zeros_like(p)
        meter.peak = before = meter.live
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, torch.nn.utils.get_total_norm(gradients))
        optimizer.step(1.0)
    state = sum(value.untyped_storage().nbytes() for value in optimizer.state().values())
    blocks = [sum(p.untyped_storage().nbytes() for p in block.parameters()) for block in model.blocks]
    element = dtype.itemsize if dtype else 4
    return StepTrace(
        parts=parts,
        micro_batch=micro_batch,
        update=meter.work.minus(micro_batch),
        targets=count,
        parameters=sum(p.numel() for p in parameters),
        weights=weights,
        gradients=sum(grad.untyped_storage().nbytes() for grad in gradients),
        optimizer=state,
        copies=meter.copies,
        activations=activations,
        growing=growing,
        extra=max(0, meter.peak - before - state),
        block=max(blocks, default=0),
        cache=element * model.cache_per_token if isinstance(model, LanguageModel) else 0,
    )


def _parts(module: Loss, batch: Batch, count: int, autocast: AbstractContextManager) -> dict[str, Part]:
    """The costs of the children of the model, and of those of its blocks, all blocks together, in a forward pass.

    This is a separate pass: the counter's hooks keep the fast paths of some layers from being used.
    """
    model, meter, saved = module.model, Meter(module.model), defaultdict[str, int](int)
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage() not in meter.weights:
            meter.weights.add(x.untyped_storage())  # it is counted once
            saved[max(counter.mod_tracker.parents, key=len)] += x.untyped_storage().nbytes()
        return x

    with counter, meter, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), autocast:
        module(batch, count)
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
