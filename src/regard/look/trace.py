"""Attention weights by a side call: hooks note queries and keys of one pass, and the reference computes the weights.

The main call is never altered. Hooks are on the model as it was built (those added after `torch.compile` never fire)
and gone when the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import BACKENDS, AnySlots, Plan, Range, Slots, Softmax
from regard.attend.call import allowed, dense_pairs
from regard.attend.slots import Pairs

#: Queries whose weights are held at a time; a longer text is looked at block by block.
BLOCK = 256


class Attention(NamedTuple):
    """One attention of one pass: whose it was, and what it was given."""

    name: str  # the mechanism's module path
    mechanism: Softmax
    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    plan: Plan


class Rows(NamedTuple):
    """A block of queries: their weights over all keys, and who sits where."""

    weights: Tensor  # [B, H, q, K]
    seen: Tensor  # [B, H, q, K], True where the mask allows the pair
    pairs: Pairs


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
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
    found: list[Attention] = []

    def watch(name: str, module: Softmax) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            given = {**dict(zip(("q", "k", "v", "plan"), inputs, strict=False)), **named}
            found.append(Attention(name, module, given["q"].detach(), given["k"].detach(), given["plan"]))

        return note

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Softmax):
                stack.callback(module.register_forward_hook(watch(name, module), with_kwargs=True).remove)
        stack.enter_context(at_rest(model))
        forward()
    calls: dict[tuple[str, int, int], list[Attention]] = {}
    for one in found:  # all of them are held here, so that no address is used twice
        calls.setdefault((one.name, id(one.plan), one.k.data_ptr()), []).append(one)
    return [whole for steps in calls.values() for whole in _joined(steps)]


def _joined(steps: list[Attention]) -> list[Attention]:
    """One attention with the queries of all steps: a loop over time asks the same keys by the same plan."""
    first = steps[0]
    if len(steps) == 1 or not isinstance(first.plan.queries, Range):
        return steps
    q = torch.cat([step.q for step in steps], dim=2)
    return [first._replace(q=q, plan=first.plan._replace(queries=Range(q.shape[2]), own=False))]


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
