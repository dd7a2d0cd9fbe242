"""Micro-batches add up: every additive term, and its gradient, is that of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.prove.batches import cut, size_for
from regard.prove.subject import Subject, mode
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "the terms of micro-batches add up to those of the whole batch"
CLOSE = 1e-4
FAR = 1e-3  # of the largest gradient


def judge(subject: Subject) -> Verdict:
    data, task, model = subject.data, subject.task, subject.model
    if data is None or task is None or model is None:
        return unasked("no model, task and data were given together")
    batch = data.batch(0, seed=1, size=max(size_for(data), 8))
    rows = len(batch.inputs)
    if rows < 2:
        return unasked("a batch is one row and cannot be cut")
    exempt: list[str] = []
    for training in (False, True):
        told = "in training, without dropout" if training else "in evaluation"
        with mode(model, training), _undropped(model):
            if getattr(model, "carried", None) is not None and training:
                continue
            for at in sorted({1, rows // 2}):
                pieces = cut(batch, at)
                if pieces is None:
                    return unasked("batches with slots of this kind cannot be cut row by row")
                if wrong := _apart(model, task, batch, pieces, exempt, f"{told}, rows cut {at} + {rows - at}"):
                    return fails(wrong)
    note = f"; not additive by name: {', '.join(sorted(set(exempt)))}" if exempt else ""
    return holds(f"{rows} rows at once and in two parts: the same sums, counts and gradients{note}")


def _apart(model: Any, task: Any, batch: Any, pieces: list[Any], exempt: list[str], told: str) -> str:
    whole = task.terms(model, batch)
    parts = [task.terms(model, piece) for piece in pieces]
    exempt += [name for name, term in whole.items() if not term.additive]
    for name, term in whole.items():
        if not term.additive:
            continue
        total, count = (sum(float(getattr(part[name], key).detach()) for part in parts) for key in ("total", "count"))
        if count != float(term.count):
            return f"{told}: {name} counts {float(term.count):g} at once and {count:g} in parts"
        if not abs(total - float(term.total.detach())) <= CLOSE * max(1.0, abs(total)):
            return f"{told}: {name} sums to {float(term.total.detach()):.6g} at once and to {total:.6g} in parts"
        summed = torch.stack([part[name].total for part in parts]).sum()
        one, other = _gradient(model, term.total), _gradient(model, summed)
        largest = max((float(g.abs().max()) for g in one.values()), default=0.0) or 1.0
        for weight, gradient in one.items():
            apart = float((gradient - other.get(weight, 0)).abs().max())
            if not apart <= FAR * largest:
                return f"{told}: the gradient of {name} at {weight} is {apart / largest:.2g} of the largest apart"
    return ""


def _gradient(model: nn.Module, total: Tensor) -> dict[str, Tensor]:
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not total.requires_grad:
        return {}
    gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: g for name, g in zip(weights, gradients, strict=True) if g is not None}


@contextmanager
def _undropped(model: nn.Module) -> Iterator[None]:
    """No dropout for a while: it is drawn anew for every shape."""
    found = [
        (part, name)
        for part in model.modules()
        for name in ("p", "dropout")
        if type(getattr(part, name, None)) is float
    ]
    kept = [(part, name, getattr(part, name)) for part, name in found]
    dropping = [(part, part.training) for part in model.modules() if isinstance(part, nn.Dropout)]
    try:
        for part, name, _ in kept:
            setattr(part, name, 0.0)
        for part, _ in dropping:
            part.training = False
        yield
    finally:
        for part, name, was in kept:
            setattr(part, name, was)
        for part, was in dropping:
            part.training = was
