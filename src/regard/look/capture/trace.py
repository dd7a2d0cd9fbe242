"""Record the inputs of every attention in one forward pass, and recompute the weights from them.

Hooks on the mechanisms record queries, keys and values; the forward pass itself is not changed. The hooks are on the
uncompiled model (hooks added after `torch.compile` never fire) and removed after the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from regard.attention import Mechanism, Plan, Range, Slots
from regard.attention.call import allowed, dense_pairs
from regard.attention.slots import Pairs
from regard.look.capture.tensor_spill import SpilledTensor, TensorSpill
from regard.models.base import Model

#: Queries whose weights are computed at a time.
BLOCK = 256
#: Attentions with at least this many queries are spilled to disk, if there is a `TensorSpill`.
LONG = 2048


class Attention(NamedTuple):
    """The inputs of one attention in one forward pass."""

    name: str  # the mechanism's module path
    mechanism: Mechanism
    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    plan: Plan
    v: Tensor | None = None  # [B, G, K, E], if they were recorded

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.q, self.k, self.v) if x is not None)


class NotObservable(NamedTuple):
    """An attention without a weight for each query and key, such as one over summaries of several keys."""

    name: str
    mechanism: Mechanism
    heads: int
    plan: Plan

    nbytes = 0

    @property
    def why(self) -> str:
        """In a sentence."""
        return f"{self.mechanism.unobservable}, so there is no map to show"


class SpilledAttention(NamedTuple):
    """An attention over a long text whose tensors are on disk."""

    name: str
    mechanism: Mechanism
    heads: int
    plan: Plan
    spill: TensorSpill
    tensors: tuple[SpilledTensor, SpilledTensor, SpilledTensor]  # q, k and v

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors)

    def load(self) -> Attention:
        """Read the tensors back."""
        q, k, v = map(self.spill.get, self.tensors)
        return Attention(self.name, self.mechanism, q, k, self.plan, v)


Observation = Attention | NotObservable | SpilledAttention


class Rows(NamedTuple):
    """The weights of a block of queries over all keys."""

    weights: Tensor  # [B, H, q, K]
    seen: Tensor  # [B, H, q, K], True where the mask allows the pair
    pairs: Pairs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; on exit, restore every module's mode and the random state."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            yield
    finally:
        for module, training in modes:
            module.training = training


def attentions(model: Model, forward: Callable[[], Any]) -> list[Attention]:
    """Every attention with observable weights that ``forward`` computes in ``model``, in order of execution."""
    return [one for one in observe(model, forward) if isinstance(one, Attention)]


def observe(
    model: Model, forward: Callable[[], Any], values: bool = False, spill: TensorSpill | None = None
) -> list[Observation]:
    """Every attention that ``forward`` computes in ``model``, in order of execution, with ``values`` on request.

    With a ``spill``, the tensors of long texts (values included) go to disk at once, so that only one layer's are in
    memory.
    """
    recorded: list[list[Attention] | NotObservable | SpilledAttention] = []
    latest: dict[str, tuple[ref[Tensor], Plan, list[Attention]]] = {}

    def watch(name: str, mechanism: Mechanism) -> Callable[..., None]:
        def record(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            arguments = {**dict(zip(("q", "k", "v", "plan"), inputs, strict=False)), **named}
            q, k, v, plan = (arguments[name] for name in ("q", "k", "v", "plan"))
            if mechanism.unobservable is not None:
                recorded.append(NotObservable(name, mechanism, q.shape[1], plan))
                return
            if spill is not None and q.shape[2] >= LONG and q.device.type == "cpu":
                tensors = spill.put(q), spill.put(k), spill.put(v)
                recorded.append(SpilledAttention(name, mechanism, q.shape[1], plan, spill, tensors))
                return
            key, known, steps = latest.get(name, (None, None, []))
            if key is not None and key() is k and known is plan and isinstance(plan.queries, Range):
                steps.append(steps[0]._replace(q=_copy(q)))  # a recurrent decoder: the same keys at every time step
                return
            steps = [Attention(name, mechanism, _copy(q), _copy(k), plan, _copy(v) if values else None)]
            latest[name] = ref(k), plan, steps
            recorded.append(steps)

        return record

    with ExitStack() as stack:
        for name, mechanism in model.mechanisms():
            stack.callback(mechanism.register_forward_hook(watch(name, mechanism), with_kwargs=True).remove)
        stack.enter_context(evaluation_mode(model))
        forward()
    return [_joined(one) if isinstance(one, list) else one for one in recorded]


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
def rows(attention: Attention, block: int = BLOCK) -> Iterator[Rows]:
    """The exact weights, a block of queries at a time, so that Q×K is never in memory for a long text."""
    for first in range(0, attention.q.shape[2], block):
        part = slice(first, first + block)
        weights, plan = block_weights(attention, part)
        pairs = dense_pairs(plan, attention.q)
        yield Rows(weights, allowed(plan.mask, pairs).expand(weights.shape), pairs)


def block_weights(attention: Attention, part: slice) -> tuple[Tensor, Plan]:
    """The weights [B, H, q, K] of some queries in float32 or better, and their plan."""
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (attention.q, attention.k))
    plan = _cut(attention.plan, part, q.device)
    weights = attention.mechanism.weights(q[:, :, part], k, plan)
    assert weights is not None  # an Attention is observable
    return weights, plan


def _cut(plan: Plan, part: slice, device: torch.device) -> Plan:
    """The plan for some of the queries."""
    slots = plan.queries
    index = torch.arange(slots.length, device=device)[part][None]
    order, segment, phase = slots.at(torch.arange(slots.rows, device=device)[:, None], index)
    shape = (slots.rows, index.shape[1])
    queries = Slots(order.expand(shape), segment.expand(shape), phase.expand(*shape, *phase.shape[2:]))
    return Plan(plan.mask, queries, plan.keys, False)
