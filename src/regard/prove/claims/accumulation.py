"""Gradient accumulation is exact: micro-batches give the sums and gradients of the whole batch."""

import torch
from torch import nn

from regard.attention import Mechanism
from regard.models.base import LanguageModel, Model
from regard.nn.recurrent import Recurrent
from regard.prove import ClaimFails, ClaimResult, ModelUnderTest, claim, holds, not_applicable
from regard.prove.batches import Batch, batch_size, random_batch, take_rows
from regard.prove.comparison import LargestGap, gradients
from regard.prove.model_under_test import training_mode
from regard.tasks import Task
from regard.train.device import move

TOLERANCE = 1e-4


@claim("accumulation", "the terms of micro-batches add up to those of the whole batch", order=110)
def accumulation(subject: ModelUnderTest) -> ClaimResult:
    data, task, model = subject.data, subject.task, subject.model
    if task is None or model is None or (data is None and not isinstance(model, LanguageModel)):
        return not_applicable("no model, task and data were given together")
    batch: Batch = random_batch(subject)
    if data is not None:
        batch = move(data.batch(0, seed=1, size=max(batch_size(data), 8)), subject.device)
    rows = len(batch.inputs)
    if rows < 2:
        return not_applicable("a batch is one row and cannot be split")
    exempt: set[str] = set()
    for training in (False,) if model.carries_state else (False, True):
        mode = "in training mode, without dropout" if training else "in evaluation mode"
        with training_mode(model, training):
            _turn_off_dropout(model)
            for at in sorted({1, rows // 2}):
                parts = [take_rows(batch, part) for part in (slice(at), slice(at, None))]
                exempt |= _compare(model, task, batch, parts, f"{mode}, rows split {at} + {rows - at}")
    note = f"; declared not additive: {', '.join(sorted(exempt))}" if exempt else ""
    return holds(f"{rows} rows at once and in two parts: the same sums, counts and gradients{note}")


def _compare(model: Model, task: Task, batch: Batch, parts: list[Batch], case: str) -> set[str]:
    """Compare the terms of a batch with those of its parts; return the names of those that are not additive."""
    whole = task.terms(model, batch)
    split = [task.terms(model, part) for part in parts]
    additive = {name: term for name, term in whole.items() if term.additive}
    for name, term in additive.items():
        count = sum(float(terms[name].count) for terms in split)
        total = torch.stack([terms[name].total for terms in split]).sum()
        if count != float(term.count):
            raise ClaimFails(f"{case}: {name} counts {float(term.count):g} at once and {count:g} in parts")
        one, two = float(term.total.detach()), float(total.detach())
        if not abs(two - one) <= TOLERANCE * max(1.0, abs(two)):
            raise ClaimFails(f"{case}: {name} sums to {one:.6g} at once and to {two:.6g} in parts")
        split_gradients, whole_gradients = gradients(model, total), gradients(model, term.total)
        LargestGap().add_gradients(split_gradients, whole_gradients, f"{case}: the gradient of {name}")
    return set(whole) - set(additive)


def _turn_off_dropout(model: nn.Module) -> None:
    """Dropout draws other numbers for every shape. ``training_mode`` puts it back."""
    for part in model.modules():
        if isinstance(part, nn.Dropout | Mechanism):
            part.training = False
        elif isinstance(part, nn.RNNBase | Recurrent):
            part.dropout = 0.0
