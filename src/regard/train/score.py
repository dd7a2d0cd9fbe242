"""How well a model knows a text: its loss on one part, with a window that slides."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from regard.tasks import Task
from regard.train.device import move
from regard.train.precision import Precision


class Score(NamedTuple):
    """A loss in nats, summed, over how many targets."""

    total: float
    targets: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.total / max(1, self.targets)

    def bits_per(self, units_per_token: float) -> float:
        """Bits per character or byte, of which a token holds so many on average."""
        return self.loss / math.log(2) / units_per_token


@torch.no_grad()
def score(model: Any, task: Task, batches: Iterable[Any], device: torch.device, precision: Precision) -> Score:
    """The sum over all batches of the task's terms, in evaluation mode."""
    totals, targets = [], 0
    was_training = model.training
    model.eval()
    try:
        with precision.autocast():
            for batch in batches:
                targets += sum(int(count) for count in task.counts(batch).values())
                terms = task.terms(model, move(batch, device)).values()
                totals += [float(term.total) for term in terms]  # summed in float64, which not every device has
    finally:
        model.train(was_training)
    return Score(math.fsum(totals), targets)
