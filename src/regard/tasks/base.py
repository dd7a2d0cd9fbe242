"""One way to lose: a task turns a batch into named terms, each a sum and a count.

The trainer adds the counts of all micro-batches and ranks before the first backward pass, and divides each sum by
that one number. So every token weighs the same however a batch is cut: accumulation and sharding are exact by
construction, where a mean of means would weigh short pieces more.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from regard.config import Choice


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


class Task(Protocol):
    """Loss and metrics for one kind of batch."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        """The terms of `batch`, by name. Must trace under `torch.compile(fullgraph=True)`."""
        ...

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """The counts alone, from the batch alone: known before any forward pass."""
        ...


class TaskConfig(Choice):
    """The choice of a task."""

    def build(self) -> Task:
        """The task this config describes."""
        raise NotImplementedError
