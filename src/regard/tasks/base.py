"""One way to lose: a task turns a batch into named terms, each a sum and a count.

The trainer adds the counts of all micro-batches and ranks before the first backward pass, and divides each sum by
that one number. So every token weighs the same however a batch is cut: accumulation and sharding are exact by
construction, where a mean of means would weigh short pieces more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.config import Choice
from regard.nn.auxiliary_loss import AuxiliaryLoss, collect


class Term(NamedTuple):
    """One named part of a loss."""

    #: The sum over all counted targets of the batch; a 0-d tensor that gradients flow through.
    total: Tensor
    #: How many targets were counted; a 0-d tensor. A batch may count none.
    count: Tensor
    #: The term's factor in the loss.
    weight: float = 1.0
    #: False for what is not a sum over a batch's rows (contrastive, expert balance): such a term changes when a
    #: batch is cut in two, and the law "accumulation equals the big batch" exempts it by this mark.
    additive: bool = True
    #: Numbers for a person that came up on the way, means over the batch: how much each expert was used, say.
    details: dict[str, Tensor] | None = None


class Task(Protocol):
    """Loss and metrics for one kind of batch."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        """The terms of `batch`, by name. Must trace under `torch.compile(fullgraph=True)`.

        In training, a model's own layers may add further ones (`with_auxiliary_losses`), which `counts` does not know.
        """
        ...

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """The counts alone, from the batch alone: known before any forward pass."""
        ...


class TaskConfig(Choice):
    """The choice of a task."""

    def build(self) -> Task:
        """The task this config describes."""
        raise NotImplementedError


def with_auxiliary_losses(
    model: nn.Module, features: Callable[[], Tensor]
) -> tuple[Tensor, dict[str, Term], dict[str, Tensor] | None]:
    """A model's features; the terms that its layers add in training; and their details, a row for each layer.

    Such a term is a sum over the layers. It is not additive, and counts once for a batch, whatever its rows. Padding
    is part of it: a layer does not know which tokens are real.
    """
    found, auxiliary = collect(model, features)
    if not auxiliary:
        return found, {}, None
    terms: dict[str, Term] = {}
    for name, (weight, _) in auxiliary[0].losses.items():
        total = torch.stack([_value(said, name, weight) for said in auxiliary if name in said.losses]).sum()
        terms[name] = Term(total, torch.ones_like(total), weight, additive=False)
    details = {name: torch.stack([said.details[name] for said in auxiliary]) for name in auxiliary[0].details}
    return found, terms, details


def _value(said: AuxiliaryLoss, name: str, weight: float) -> Tensor:
    """One layer's part of a term whose weight in the loss is the first layer's."""
    own, value = said.losses[name]
    return value if own == weight else value * (own / weight)
