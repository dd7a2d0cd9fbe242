"""Gradient accumulation is exact: micro-batches give the sums and gradients of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.attention import Mechanism
from regard.models.base import Model
from regard.nn.recurrent import Recurrent
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.batches import Batch, batch_size, split_rows
from regard.prove.model_under_test import training_mode
from regard.tasks import Task

TOLERANCE = 1e-4
GRADIENTS = 1e-3  # of the largest gradient


@claim("accumulation", "the terms of micro-batches add up to those of the whole batch", order=110)
def accumulation(subject: ModelUnderTest) -> ClaimResult:
    data, task, model = subject.data, subject.task, subject.model
    if data is None or task is None or model is None:
        return not_applicable("no model, task and data were given together")
    batch = data.batch(0, seed=1, size=max(batch_size(data), 8))
    rows = len(batch.inputs)
    if rows < 2:
        return not_applicable("a batch is one row and cannot be split")
    exempt: set[str] = set()
    for training in (False, True):
        if training and model.carries_state:
            continue
        mode = "in training mode, without dropout" if training else "in evaluation mode"
        with training_mode(model, training), _without_dropout(model):
            for at in sorted({1, rows // 2}):
                parts = split_rows(batch, at)
                if parts is None:
                    return not_applicable("batches with slots of this kind cannot be split by rows")
                if wrong := _difference(model, task, batch, parts, exempt):
                    return fails(f"{mode}, rows split {at} + {rows - at}: {wrong}")
    note = f"; declared not additive: {', '.join(sorted(exempt))}" if exempt else ""
    return holds(f"{rows} rows at once and in two parts: the same sums, counts and gradients{note}")


def _difference(model: Model, task: Task, batch: Batch, parts: list[Batch], exempt: set[str]) -> str:
    whole = task.terms(model, batch)
    split = [task.terms(model, part) for part in parts]
    exempt |= {name for name, term in whole.items() if not term.additive}
    for name, term in whole.items():
        if name in exempt:
            continue
        count = sum(float(terms[name].count) for terms in split)
        total = torch.stack([terms[name].total for terms in split]).sum()
        if count != float(term.count):
            return f"{name} counts {float(term.count):g} at once and {count:g} in parts"
        one, two = float(term.total.detach()), float(total.detach())
        if not abs(two - one) <= TOLERANCE * max(1.0, abs(two)):
            return f"{name} sums to {one:.6g} at once and to {two:.6g} in parts"
        gradients, others = _gradients(model, term.total), _gradients(model, total)
        largest = max((float(g.abs().max()) for g in gradients.values()), default=0.0) or 1.0
        for weight, gradient in gradients.items():
            apart = float((gradient - others.get(weight, 0)).abs().max())
            if not apart <= GRADIENTS * largest:
                return f"the gradient of {name} at {weight} is {apart / largest:.2g} of the largest apart"
    return ""


def _gradients(model: nn.Module, total: Tensor) -> dict[str, Tensor]:
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not total.requires_grad:
        return {}
    gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: g for name, g in zip(weights, gradients, strict=True) if g is not None}


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Turn dropout off in training mode: it draws other numbers for every shape."""
    modes = [(part, part.training) for part in model.modules() if isinstance(part, nn.Dropout | Mechanism)]
    rates = [(part, part.dropout) for part in model.modules() if isinstance(part, nn.RNNBase | Recurrent)]
    try:
        for part, _ in modes:
            part.training = False
        for part, _ in rates:
            part.dropout = 0.0
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for part, rate in rates:
            part.dropout = rate
