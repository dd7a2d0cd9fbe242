"""Losses: a task turns a batch into named terms, each a sum and a count.

The engine adds the counts of all micro-batches and ranks before the first backward pass and divides each sum by that
number. So every token has the same weight, however a batch is divided: accumulation and sharding are exact, while a
mean of means would give tokens of short micro-batches more weight.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.config import Choice
from regard.data.base import Data
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.models import Model, ModelConfig
from regard.nn.auxiliary_loss import collect
from regard.pages.html import ChartSection

C = TypeVar("C")


class Term(NamedTuple):
    """One named part of a loss."""

    total: Tensor  # 0-d, with gradient: the sum over all counted targets of the batch
    count: Tensor  # 0-d: the number of counted targets, possibly 0
    weight: float = 1.0  # of the term in the loss
    #: False if the term is not a sum over the rows of a batch (contrastive, expert balance): then accumulation does not
    #: equal the large batch.
    additive: bool = True
    details: dict[str, Tensor] | None = None  # metrics, as means over the batch, such as the load of each expert


class Prediction(NamedTuple):
    """What a model answers for one example."""

    line: str  # for a person
    record: dict[str, Any]  # for programs
    charts: Sequence[ChartSection] = ()  # for `regard predict --out`
    part: int | None = None  # the number of the part of the example that it is about; None: of all of it


class Task(Protocol):
    """The loss for one type of batch."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        """The terms of ``batch`` by name. Must trace under ``torch.compile(fullgraph=True)``.

        In training, auxiliary losses of the model's layers may be added, which ``counts`` does not contain.
        """
        ...

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """The counts of the terms, without a forward pass."""
        ...


class TaskConfig(Choice):
    """Which loss an experiment trains with."""

    trains: ClassVar[type[Model]] = Model  # the models that it can train
    examples: ClassVar[type[Data] | tuple[type[Data], ...]] = Data  # the data that it can learn from
    kinds_of_data: ClassVar[str] = "other data"  # the same in words, and how to choose them
    unit: ClassVar[str] = "token"  # what a target is one of, for messages
    measured_in: ClassVar[str] = "nats"  # its loss
    over_ranks: ClassVar[bool] = False  # the loss of a rank depends on the rows of the others

    @property
    def read_together(self) -> int:
        """How many rows of a batch the model reads as one. Default: each alone."""
        return 1

    def fit(self, data: Data) -> Self:
        """This task for ``data``, such as with the names of its classes. Default: unchanged, if it fits ``data``."""
        if not isinstance(data, self.examples):
            raise UserError(f"the task {self.kind} cannot learn from {data.name}; it needs {self.kinds_of_data}")
        return self

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with the head that the task needs. Default: unchanged."""
        return model

    def build(self) -> Task:
        """The task."""
        raise NotImplementedError


class Predicting(ABC):
    """A task whose answers `regard predict` shows."""

    tokenizer: Tokenizer | None = None  # that of a run that is loaded, for answers that are texts

    @abstractmethod
    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The answer for each row of a batch, in evaluation mode and without gradients."""


class Measured(ABC, Generic[C]):
    """A task that is judged by more than its loss. Evaluation adds up the statistics of all batches and ranks."""

    best: str | None  # the measure that early stopping watches, where more is better; None: the loss

    def __init__(self, config: C):
        self.config = config

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        """As ``Task.terms``. Default: those of ``measured``."""
        return self.measured(model, batch)[0]

    @abstractmethod
    def counts(self, batch: Any) -> dict[str, Tensor]:
        """As ``Task.counts``."""

    @abstractmethod
    def measured(self, model: Any, batch: Any) -> tuple[dict[str, Term], Tensor]:
        """The terms of a batch and statistics of its predictions that may be added, [S]."""

    @abstractmethod
    def metrics(self, sums: Tensor) -> dict[str, float]:
        """The measures by name, from the sums of the statistics [S] in float64."""


def with_auxiliary_losses(
    model: nn.Module, features: Callable[[], Tensor]
) -> tuple[Tensor, dict[str, Term], dict[str, Tensor] | None]:
    """The result of ``features``, the auxiliary losses recorded meanwhile as terms, and their metrics by layer.

    Such a term is a sum over the layers, counts once per batch, and is not additive. It includes padding: a layer does
    not know which tokens are real.
    """
    result, auxiliary = collect(model, features)
    if not auxiliary:
        return result, {}, None
    terms: dict[str, Term] = {}
    for name, (weight, _) in auxiliary[0].losses.items():
        # Each layer's loss, rescaled to the common weight of the term.
        layers = [loss.losses[name] for loss in auxiliary if name in loss.losses]
        total = torch.stack([value if own == weight else value * (own / weight) for own, value in layers]).sum()
        terms[name] = Term(total, torch.ones_like(total), weight, additive=False)
    details = {name: torch.stack([loss.details[name] for loss in auxiliary]) for name in auxiliary[0].details}
    return result, terms, details
