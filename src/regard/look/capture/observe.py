"""Record the inputs of every attention in one forward pass, and recompute the weights from them.

Hooks on the mechanisms record queries, keys and values; the forward pass itself is not changed. The hooks are on the
uncompiled model (hooks added after `torch.compile` never fire) and removed after the pass.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import NamedTuple, Self, TypeVar
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from regard.attention import Mechanism, Plan, Range, Slots
from regard.generate.sampling import in_float32
from regard.models.base import Model

#: Attentions with at least this many queries are spilled to temporary files, where a process can open its own
#: descriptors by name (not on Windows; there they stay in memory).
LONG = 2048
SPILLABLE = os.path.isdir("/dev/fd")

T = TypeVar("T")


class SpillFile:
    """A temporary file without a name, which disappears with its last user."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0, prefix="regard-")  # noqa: SIM115
        finalize(self, self.file.close)


@lru_cache(64)
def _meta(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor without data; one for all layers, since small objects between large ones fragment the heap."""
    return torch.empty(shape, dtype=dtype, device="meta")


class Attention(NamedTuple):
    """The inputs of one attention in one forward pass."""

    name: str  # the mechanism's module path
    mechanism: Mechanism
    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    plan: Plan
    v: Tensor | None = None  # [B, G, K, E], if they were recorded
    spilled: SpillFile | None = None  # the file of a long text's q, k and v, which are then meta tensors; see `load`

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What was recorded of q, k and v, by name."""
        return {name: x for name, x in (("q", self.q), ("k", self.k), ("v", self.v)) if x is not None}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors.values())

    @property
    def unobservable(self) -> str | None:
        """Why there is no weight for each query and key, such as for attention over summaries of several keys."""
        why = self.mechanism.unobservable
        return None if why is None else f"{why}, so there is no map to show"

    def spill(self) -> Self:
        """This attention with its tensors in a temporary file."""
        empty = {name: _meta(x.shape, x.dtype) for name, x in self.tensors.items()}
        spilled = self._replace(**empty, spilled=SpillFile())
        for name, x in spilled._mapped(shared=True).items():
            x.copy_(self.tensors[name])
        return spilled

    def load(self) -> Self:
        """This attention with its tensors; those in a file are mapped into memory, so that only pages in use take it.

        The queries, keys and values of a large model over 8,192 tokens take a gigabyte, and a view needs one layer.
        """
        return self if self.spilled is None else self._replace(**self._mapped(shared=False), spilled=None)

    def _mapped(self, shared: bool) -> dict[str, Tensor]:
        """The tensors in the file; if they are ``shared``, the file follows their changes."""
        assert self.spilled is not None
        path = f"/dev/fd/{self.spilled.file.fileno()}"
        mapped = torch.from_file(path, shared=shared, size=self.nbytes, dtype=torch.uint8)
        parts = mapped.split([x.nbytes for x in self.tensors.values()])
        named = zip(self.tensors.items(), parts, strict=True)
        return {name: part.view(x.dtype).view(x.shape) for (name, x), part in named}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; on exit, restore every module's mode and the random state."""
    training = [module for module in model.modules() if module.training]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    for module in training:
        module.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            yield
    finally:
        for module in training:
            module.training = True


def attentions(model: Model, forward: Callable[[], object]) -> list[Attention]:
    """Every attention with observable weights that ``forward`` computes in ``model``, in order of execution."""
    return [one for one in observe(model, forward)[0] if one.unobservable is None]


def observe(model: Model, forward: Callable[[], T], values: bool = False) -> tuple[list[Attention], T]:
    """Every attention that ``forward`` computes in ``model``, in order of execution, and the result of ``forward``.

    With ``values``, they are recorded too, and the tensors of long texts go to disk at once, so that only one layer's
    are in memory.
    """
    recorded: list[list[Attention]] = []

    def watch(name: str, mechanism: Mechanism) -> Callable[..., None]:
        keys: ref[Tensor] | None = None
        steps: list[Attention] = []

        def record(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> None:
            nonlocal keys, steps
            one = Attention(name, mechanism, q, k, plan, v if values else None)
            if values and SPILLABLE and q.shape[2] >= LONG and q.device.type == "cpu":
                recorded.append([one.spill()])
            elif keys is not None and keys() is k and steps[0].plan is plan and isinstance(plan.queries, Range):
                steps.append(steps[0]._replace(q=_copy(q)))  # a recurrent decoder: the same keys at every time step
            else:
                steps = [one._replace(**{name: _copy(x) for name, x in one.tensors.items()})]
                keys = ref(k)
                recorded.append(steps)

        return lambda _, inputs, named, __: record(*inputs, **named)

    with ExitStack() as stack:
        for name, mechanism in model.mechanisms():
            stack.callback(mechanism.register_forward_hook(watch(name, mechanism), with_kwargs=True).remove)
        stack.enter_context(evaluation_mode(model))
        result = forward()
    return [_joined(steps) for steps in recorded], result


def _copy(x: Tensor) -> Tensor:
    """A copy that keeps neither a graph nor a larger tensor alive."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _joined(steps: list[Attention]) -> Attention:
    """One attention with the queries of all time steps."""
    first = steps[0]
    if len(steps) == 1:
        return first
    q = torch.cat([step.q for step in steps], dim=2)
    return first._replace(q=q, plan=first.plan._replace(queries=Range(q.shape[2]), same_tokens=False))


@torch.no_grad()
def dense_weights(attention: Attention, part: slice = slice(None)) -> Tensor:
    """The exact weights [B, H, q, K] of some queries, by default of all, in float32 or better."""
    q, k = in_float32(attention.q), in_float32(attention.k)
    slots = attention.plan.queries
    index = torch.arange(slots.length, device=q.device)[part][None]
    order, segment, phase = slots.at(torch.arange(slots.rows, device=q.device)[:, None], index)
    shape = (slots.rows, index.shape[1])
    queries = Slots(order.expand(shape), segment.expand(shape), phase.expand(*shape, *phase.shape[2:]))
    plan = attention.plan._replace(queries=queries, same_tokens=False, backend="", prepared=None)
    weights = attention.mechanism.weights(q[:, :, part], k, plan)
    assert weights is not None  # a mechanism without weights is unobservable
    return weights
