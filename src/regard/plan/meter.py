"""Counts what traced operations do: FLOPs, bytes read and written, launches, and the storages that live at a time."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from regard.models import Model
from regard.plan.formulas import FORMULAS, LAUNCHES, WORKSPACES
from regard.plan.heap import Event
from regard.plan.operations import Operation, StartedBy, started_by

#: PyTorch's CUDA allocator rounds each block up to so many bytes.
CUDA_BLOCK = 512
#: Operations that give memory out and compute nothing.
EMPTY = {torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided, torch.ops.aten.new_empty}


class Work(NamedTuple):
    """What a step does, as far as it decides its time."""

    flops: float
    bytes: float  # read and written by operations
    operations: float  # started one after another
    half: float = 0.0  # those FLOPs that are of 16-bit formats

    def minus(self, other: Work) -> Work:
        """The rest of this work."""
        return Work(*(a - b for a, b in zip(self, other, strict=True)))


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors of nested arguments."""
    return [x for x in tree_iter(tree) if isinstance(x, Tensor)]


class Meter(TorchDispatchMode):
    """Counts operations and their bytes, and follows the storages that live."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.flops, self.bytes, self.operations, self.half = 0.0, 0.0, 0, 0.0
        self.timeline: list[Operation] = []
        self.events: list[Event] = []
        self.kept: set[int] = set()  # blocks of gradients
        self.live = self.peak = self.gradients = self.growing = 0
        self.copied = self.own_peak = 0  # bytes of copies of weights in another format, and the peak without them
        self.weights: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()  # and their copies in another format
        self.sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        self.blocks: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        for x in (*model.parameters(), *model.buffers()):
            self.follow(x)
            self.weights.add(x.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors, made = tensors_in((args, kwargs)), tensors_in(out)
        if func.namespace in ("prim", "profiler") or not (tensors or made):
            return out  # a question about a tensor
        given = [x.untyped_storage() for x in tensors]
        new = [x for x in made if not any(x.untyped_storage() is one for one in given)]
        origin = started_by()
        if not new and not func._schema.is_mutable:
            self.timeline.append(Operation(0, origin=origin))  # a view
            return out
        self._count(func, args, kwargs or {}, out, origin)
        if func._overloadpacket in WORKSPACES:
            self.follow(made[3], WORKSPACES[func._overloadpacket](*args))
        copies = func is torch.ops.aten._to_copy.default and all(one in self.weights for one in given)
        for x in new:
            self.follow(x, copies=copies)
            if copies:
                self.weights.add(x.untyped_storage())
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, origin: StartedBy) -> None:
        """Count an operation that is no view."""
        packet, tensors, flops = func._overloadpacket, tensors_in((args, kwargs)), 0.0
        if packet in FORMULAS:
            flops = FORMULAS[packet](*args, **kwargs)
        elif packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=out)
        half = bool(flops) and tensors[0].element_size() == 2
        places = zip(func._schema.arguments, args, strict=False)
        changed = [given for place, given in places if place.alias_info is not None and place.alias_info.is_write]
        # Several tensors that are changed together are no output; broadcast ones are smaller than their shapes.
        size = (
            0.0 if packet in EMPTY else float(sum(map(_extent, (*tensors, *(tensors_in(out) or tensors_in(changed))))))
        )
        launches = 0 if packet in EMPTY else LAUNCHES[packet](*args) if packet in LAUNCHES else 1
        attention = any(word in func.name() for word in ("attention", "regard_plan::visible"))
        self.timeline.append(Operation(launches, flops, size, half, attention, origin))
        self.operations += launches
        self.flops += flops
        self.half += flops if half else 0.0
        self.bytes += size

    @property
    def work(self) -> Work:
        """What was done so far."""
        return Work(self.flops, self.bytes, self.operations, self.half)

    def accumulated(self, parameter: Tensor) -> None:
        """Count a gradient, and free it, so that it is not counted among activations."""
        assert parameter.grad is not None
        self.gradients += stored(parameter.grad)
        self.kept.add(self.blocks[parameter.grad.untyped_storage()])
        self.growing = max(self.growing, self.live + self.gradients)
        parameter.grad = None

    @property
    def copies(self) -> int:
        """Bytes of copies of weights at the peak, as many as are not there at the peak of the rest."""
        return self.peak - self.own_peak

    def follow(self, x: Tensor, least: int = 0, *, copies: bool = False) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = x.untyped_storage()
        if storage not in self.sizes:
            size = self.sizes[storage] = max(stored(x), least)
            self.live += size
            self.copied += size if copies else 0
            self.peak, self.growing = max(self.peak, self.live), max(self.growing, self.live + self.gradients)
            self.own_peak = max(self.own_peak, self.live - self.copied)
            block = self.blocks[storage] = len(self.events)
            self.events.append(Event(block, size))
            weakref.finalize(storage, self._freed, block, size, copies)

    def _freed(self, block: int, size: int, copies: bool) -> None:
        self.live -= size
        self.copied -= size if copies else 0
        self.events.append(Event(block))


def stored(x: Tensor) -> int:
    """Bytes of the storage of a tensor, as the device's allocator gives them out."""
    size = x.untyped_storage().nbytes()
    return -(-size // CUDA_BLOCK) * CUDA_BLOCK if x.device.type == "cuda" else size


def _extent(x: Tensor) -> int:
    """Bytes of its elements; those that are broadcast count once."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
