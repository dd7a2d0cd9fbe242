"""Gradients layer by layer, and how far an update moves the weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor import limits
from regard.doctor.finding import Finding

#: Numbers of weights that are copied to see an update, and of one matrix at most.
COPIED, EACH = 2**22, 2**19


class Group(NamedTuple):
    """A part of one layer: blocks.1.attention is part "attention" of number 1 in the stack "blocks"."""

    stack: str
    number: int  # -1: the model has no numbered layers
    part: str

    @property
    def name(self) -> str:
        """Its path."""
        return ".".join(filter(None, (self.layer, self.part)))

    @property
    def layer(self) -> str:
        """The path of its layer."""
        return self.stack if self.number < 0 else ".".join(filter(None, (self.stack, str(self.number))))


def groups(model: nn.Module) -> dict[Group, list[nn.Parameter]]:
    """The parameters of numbered layers, and of all other modules by themselves.

    A group without a matrix, such as a norm, is left out.
    """
    found: dict[Group, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        *path, _ = name.split(".")
        at = next((i for i, part in enumerate(path) if part.isdigit()), None)
        if at is not None:
            part = path[at + 1] if len(path) > at + 1 else ""
            found.setdefault(Group(".".join(path[:at]), int(path[at]), part), []).append(parameter)
        else:
            found.setdefault(Group(path[0] if path else "", -1, ".".join(path[1:2])), []).append(parameter)
    return {group: members for group, members in found.items() if any(p.ndim >= 2 for p in members)}


@torch.no_grad()
def norms(parts: dict[Group, list[nn.Parameter]], total: float, model: nn.Module) -> dict[Group, float | None]:
    """Of each group the gradient's norm before clipping, where ``total`` is that of the whole gradient; None: none."""
    every = {p: p.grad for p in model.parameters() if p.grad is not None}
    if not every:
        return {}
    values = torch.stack([n.float() for n in torch._foreach_norm(list(every.values()))]).tolist()
    known = dict(zip(every, values, strict=True))
    left = math.hypot(*values)  # clipping scales all alike
    scale = total / left if left and math.isfinite(total) else 1.0
    return {
        group: scale * math.hypot(*(known.get(p, 0.0) for p in members)) if any(p in known for p in members) else None
        for group, members in parts.items()
    }


@torch.no_grad()
def silent(parts: dict[Group, list[nn.Parameter]], model: nn.Module) -> Iterator[Finding]:
    """Single matrices that get nothing, or next to it, where others of their own part get a gradient.

    Compared by the number, so that large matrices and small ones are alike.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group, members in parts.items():
        matrices = [p for p in members if p.ndim >= 2]
        there = [p for p in matrices if p.grad is not None]
        if not there:
            continue
        lengths = torch.stack([n.float() for n in torch._foreach_norm([p.grad for p in there])]).tolist()  # type: ignore[misc]
        each = {p: length / math.sqrt(p.numel()) for p, length in zip(there, lengths, strict=True)}
        largest = max(each.values())
        for p in matrices:
            where, own = names[p].rpartition(".")[0], each.get(p, 0.0)
            if where != group.name and own < limits.SILENT * largest:
                evidence = f"its gradient is {own:.1g} a number, and up to {largest:.1g} elsewhere in {group.name}"
                cause = "what it gives does not reach the loss, is detached, or is divided away again"
                change = "see what becomes of its output: a share of one, a detach, a round, an argmax"
                yield Finding("vanishing_gradients", where, evidence, cause, change)


def judge(found: dict[Group, float | None], total: float, clip: float | None) -> Iterator[Finding]:
    """Layers whose gradients are out of all proportion; ``total`` is the usual norm of the whole gradient."""
    yield from _cut_off(found)
    there = {group: norm for group, norm in found.items() if norm is not None}
    exploding = list(_exploding(there, total, clip))
    yield from exploding or _vanishing(there)


def _exploding(found: dict[Group, float], total: float, clip: float | None) -> Iterator[Finding]:
    change = "--train.clip 1.0 and a lower --train.optimizer.lr" if clip is None else "a lower --train.optimizer.lr"
    grown = []
    for group, norm in found.items():
        later = [n for other, n in found.items() if _above(group, other)]
        if later and norm > max(1.0, limits.GROWS * max(later)) and max(later) > 0:
            grown.append((norm / max(later), group, norm))
    if grown:
        # Below the layer that makes it, everything is as large: the one nearest to the loss is the cause.
        last = max(group.number for _, group, _ in grown)
        times, group, norm = max((one for one in grown if one[1].number == last), key=lambda one: one[0])
        evidence = f"its gradient is {norm:.3g}, {times:,.0f} times that of the same part of the layers above it"
        cause = "something in it multiplies gradients: weights too large, or a backward pass that is wrong"
        yield Finding("exploding_gradients", group.name, evidence, cause, change)
    elif total > limits.NORM and found:
        group = max(found, key=lambda one: found[one])
        evidence = f"the gradient's norm is {total:.3g}, most of it ({found[group]:.3g}) here"
        cause = "weights whose product with themselves grows from step to step, or inputs far too large"
        yield Finding("exploding_gradients", group.name, evidence, cause, change)


def _cut_off(found: dict[Group, float | None]) -> Iterator[Finding]:
    """Layers that backward never came to."""
    if all(norm is None for norm in found.values()):
        return
    for layer in dict.fromkeys(group.layer for group, norm in found.items() if norm is None):
        members = {group.name: norm for group, norm in found.items() if group.layer == layer}
        cut = [name for name, norm in members.items() if norm is None]
        for where in [layer] if len(cut) == len(members) else cut:
            cause = (
                "a detach or no_grad cuts it off from the loss, its requires_grad is off, or nothing uses what it gives"
            )
            change = "remove the .detach() or no_grad behind it; parameters need requires_grad"
            yield Finding("vanishing_gradients", where, "no gradient at all reaches it", cause, change)


def _vanishing(found: dict[Group, float]) -> Iterator[Finding]:
    largest = max(found.values(), default=0.0)
    for group, norm in found.items():
        later = [n for other, n in found.items() if _above(group, other)]
        if norm < limits.SHRINKS * max(later, default=0.0) or norm == 0 < largest:
            evidence = f"its gradient is {norm:.2g}, and up to {largest:.2g} elsewhere"
            cause = "units at the flat end of their activation, or weights near zero behind it"
            change = "smaller first weights and biases there, or another --model.norm or --model.block"
            yield Finding("vanishing_gradients", group.name, evidence, cause, change)


def _above(group: Group, other: Group) -> bool:
    """Whether ``other`` is the same kind of part nearer to the loss."""
    return (other.stack, other.part) == (group.stack, group.part) and other.number > group.number


class Moved(NamedTuple):
    """What one update did: the middle of all ratios to the weights it changed, and who did not move at all."""

    ratio: float
    still: list[str]  # though a gradient came to them


def left_out(still: list[str]) -> Iterator[Finding]:
    """Parts that an update has passed by."""
    for name in still:
        evidence = "a gradient reaches its weights, and an update that moved others left them as they were"
        cause = "the optimizer was not given them, or its rate for them is zero"
        change = "make the optimizer from all of model.parameters(), after the model is whole"
        yield Finding("rate_too_low", name, evidence, cause, change)


class Moves:
    """How far the next update moves the matrices: some of them are copied now, and compared one step later."""

    def __init__(self, parts: dict[Group, list[nn.Parameter]]):
        owned = [(group, p) for group, members in parts.items() for p in members if p.ndim >= 2]
        matrices = [p for _, p in owned]
        # A spread of them: a few rows of each say as much as the whole.
        room = max(1, min(EACH, COPIED // max(len(matrices), 1)))
        self._owners, self._matrices = [group for group, _ in owned], matrices
        self._rows = [max(1, min(len(p), room // max(p[0].numel(), 1))) for p in matrices]
        self._before: list[Tensor] = []

    @torch.no_grad()
    def copy(self) -> None:
        """Before the update."""
        self._before = [p[:rows].clone() for p, rows in zip(self._matrices, self._rows, strict=True)]

    @torch.no_grad()
    def compare(self) -> Moved | None:
        """After it; None: nothing was copied."""
        if not self._before:
            return None
        after = [p[:rows] for p, rows in zip(self._matrices, self._rows, strict=True)]
        moved = torch._foreach_norm(torch._foreach_sub(after, self._before))
        lengths = torch._foreach_norm(self._before)
        self._before = []
        pairs = torch.stack([*moved, *lengths]).float().view(2, -1).T.tolist()
        ratios = [one / other for one, other in pairs if other > 0]
        if not ratios or not any(one for one, _ in pairs):
            return Moved(0.0, []) if ratios else None
        still = {group: True for group in self._owners if group.number >= 0}
        for group, p, rows, (one, _) in zip(self._owners, self._matrices, self._rows, pairs, strict=True):
            if one or p.grad is None or not bool(p.grad[:rows].any()):
                still[group] = False
        return Moved(statistics.median(ratios), [group.name for group, true in still.items() if true])
