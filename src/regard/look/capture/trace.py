"""Attention weights by a side call: hooks note queries and keys of one pass, and the reference computes the weights.

The main call is never altered. Hooks are on the model as it was built (those added after `torch.compile` never fire)
and gone when the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from regard.attention import BACKENDS, AnySlots, Mechanism, Plan, Range, Slots, Softmax
from regard.attention.call import allowed, dense_pairs
from regard.attention.slots import Pairs
from regard.look.capture.tensor_spill import Place, TensorSpill

#: Queries whose weights are held at a time; a longer text is looked at block by block.
BLOCK = 256
#: Queries from which an attention is put on a shelf, where there is one.
LONG = 2048


class Attention(NamedTuple):
    """One attention of one pass: whose it was, and what it was given."""

    name: str  # the mechanism's module path
    mechanism: Softmax
    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    plan: Plan
    v: Tensor | None = None  # [B, G, K, E], where they were asked for


class NotObservable(NamedTuple):
    """An attention that has no weight for each query and key to show: an approximation, or heads that talk."""

    name: str
    mechanism: Mechanism
    heads: int
    plan: Plan

    @property
    def why(self) -> str:
        """In a sentence."""
        return f"{type(self.mechanism).__name__} does not weigh each key for itself, so there is no map to show"


class SpilledAttention(NamedTuple):
    """An attention over a long text, put aside until somebody asks."""

    name: str
    mechanism: Softmax
    heads: int
    plan: Plan
    shelf: TensorSpill
    places: tuple[Place, Place, Place]  # of q, k and v

    def load(self) -> Attention:
        """Back in memory."""
        q, k, v = (self.shelf.get(place) for place in self.places)
        return Attention(self.name, self.mechanism, q, k, self.plan, v)


class Rows(NamedTuple):
    """A block of queries: their weights over all keys, and who sits where."""

    weights: Tensor  # [B, H, q, K]
    seen: Tensor  # [B, H, q, K], True where the mask allows the pair
    pairs: Pairs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model without dropout and without gradients; afterwards it is, to the last module and bit, as it was."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            yield
    finally:
        for module, training in modes:
            module.training = training


def attentions(model: nn.Module, forward: Callable[[], Any]) -> list[Attention]:
    """Every exact attention that `forward` carries out in `model`, in order of execution."""
    return [one for one in everything(model, forward) if isinstance(one, Attention)]


def everything(
    model: nn.Module, forward: Callable[[], Any], values: bool = False, shelf: TensorSpill | None = None
) -> list[Attention | NotObservable | SpilledAttention]:
    """Every attention, exact or not, in order of execution; the values of exact ones too, if asked for.

    With a ``shelf``, what is long is put there at once and with its values, so that one layer at a time is held.
    """
    found: list[list[Attention] | NotObservable | SpilledAttention] = []
    latest: dict[str, tuple[ref[Tensor], Plan, list[Attention]]] = {}

    def watch(name: str, module: Mechanism) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            given = {**dict(zip(("q", "k", "v", "plan"), inputs, strict=False)), **named}
            q, k, v, plan = (given[part] for part in ("q", "k", "v", "plan"))
            if not isinstance(module, Softmax):
                found.append(NotObservable(name, module, q.shape[1], plan))
                return
            if shelf is not None and q.shape[2] >= LONG and q.device.type == "cpu":
                found.append(
                    SpilledAttention(name, module, q.shape[1], plan, shelf, (shelf.put(q), shelf.put(k), shelf.put(v)))
                )
                return
            key, known, steps = latest.get(name, (None, None, []))
            if key is not None and key() is k and known is plan and isinstance(plan.queries, Range):
                steps.append(steps[0]._replace(q=_own(q)))  # a loop over time asks the same keys by the same plan
                return
            steps = [Attention(name, module, _own(q), _own(k), plan, _own(v) if values else None)]
            latest[name] = ref(k), plan, steps
            found.append(steps)

        return note

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Mechanism):
                stack.callback(module.register_forward_hook(watch(name, module), with_kwargs=True).remove)
        stack.enter_context(evaluation_mode(model))
        forward()
    return [_joined(one) if isinstance(one, list) else one for one in found]


def _own(x: Tensor) -> Tensor:
    """A copy: what is looked at holds neither a graph nor the larger tensor that this was cut from."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _joined(steps: list[Attention]) -> Attention:
    """One attention with the queries of all steps."""
    first = steps[0]
    if len(steps) == 1:
        return first
    q = torch.cat([step.q for step in steps], dim=2)
    return first._replace(q=q, plan=first.plan._replace(queries=Range(q.shape[2]), own=False))


@torch.no_grad()
def rows(attention: Attention, block: int = BLOCK) -> Iterator[Rows]:
    """The exact weights, a block of queries at a time: Q×K is never held for a long text."""
    mechanism, plan = attention.mechanism, attention.plan
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (attention.q, attention.k))
    nothing = k.new_zeros(*k.shape[:3], 0)  # only the weights are wanted
    for first in range(0, q.shape[2], block):
        part = slice(first, first + block)
        cut = Plan(plan.mask, _cut(plan.queries, part, q.device), plan.keys, False, "reference", None)
        call = mechanism.call(q[:, :, part], k, nothing, cut, weights=True)._replace(dropout=0.0)
        weights = BACKENDS["reference"].run(call).weights
        assert weights is not None  # they were asked for
        pairs = dense_pairs(call)
        yield Rows(weights, allowed(plan.mask, pairs).expand(weights.shape), pairs)


def _cut(slots: AnySlots, part: slice, device: torch.device) -> Slots:
    """The slots of some of the queries."""
    index = torch.arange(slots.length, device=device)[part][None]
    order, segment, phase = slots.at(torch.arange(slots.rows, device=device)[:, None], index)
    shape = (slots.rows, index.shape[1])
    return Slots(order.expand(shape), segment.expand(shape), phase.expand(*shape, *phase.shape[2:]))
