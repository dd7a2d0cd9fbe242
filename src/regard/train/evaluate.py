"""Evaluation: the loss over whole parts of the data, as sums and counts, so that every target has the same weight."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data import Batch
from regard.models import Model
from regard.tasks import Measured, Task, Term
from regard.train.device import move
from regard.train.engine import Engine, Terms
from regard.train.precision import Precision


class LossSum(NamedTuple):
    """A summed loss in nats, and the number of targets."""

    total: float
    targets: float
    weight: float = 1.0  # of this term in the loss
    batches: Sequence[tuple[float, float]] = ()  # total and targets of each

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.total / max(1.0, self.targets)

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite beyond the range of a float."""
        return math.inf if self.loss > 700 else math.exp(self.loss)

    def bits_per(self, units_per_token: float) -> float:
        """Bits per character or byte, given how many of them a token holds on average."""
        return self.loss / math.log(2) / units_per_token


def evaluate(engine: Engine, batches: Iterable[Batch] | None = None, share: float = 1.0) -> dict[str, float] | None:
    """``{"validation_loss": ...}`` over the validation part, or over ``batches``; None if there are none.

    A task of several terms also gets ``validation_<term>`` for each of them, and a ``Measured`` one its measures.
    ``share``: of the validation part that ``batches`` are; if it is not all, it is ``validation_share``, and the
    standard error of the loss ``validation_error``.
    """
    chosen = engine.validation_batches() if batches is None else batches
    statistics: list[Tensor] = []
    terms = collecting(engine.task, statistics) if isinstance(engine.task, Measured) else engine.terms
    sums = sum_terms(terms, engine.model, engine.task, chosen, engine.precision, engine.graphs)
    if not sums:
        return None
    summed = engine.world.sums([number for term in sums.values() for number in (term.total, term.targets)])
    means = {
        name: LossSum(total, count).loss for name, total, count in zip(sums, summed[::2], summed[1::2], strict=True)
    }
    result = {"validation_loss": sum(sums[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        result |= {f"validation_{name}": mean for name, mean in means.items()}
    if share < 1:
        result["validation_share"] = share
        if (error := standard_error(engine, sums, means, share)) is not None:
            result["validation_error"] = error
    if isinstance(engine.task, Measured):
        totals = torch.tensor(engine.world.sums(torch.stack(statistics).sum(0).tolist()), dtype=torch.float64)
        result |= {f"validation_{name}": value for name, value in engine.task.metrics(totals).items()}
    return result


def standard_error(
    engine: Engine, sums: Mapping[str, LossSum], means: Mapping[str, float], share: float
) -> float | None:
    """The standard error of a loss that was measured on every k-th batch, a ``share`` of all; None of one batch.

    That of a ratio estimator from clusters of different sizes (Cochran 1977, equation 2.46): the batches.
    """
    targets = dict(zip(sums, engine.world.sums([term.targets for term in sums.values()]), strict=True))
    residuals = [
        math.fsum(
            term.weight * (term.batches[number][0] - means[name] * term.batches[number][1]) / max(1.0, targets[name])
            for name, term in sums.items()
        )
        for number in range(len(next(iter(sums.values())).batches))
    ]
    squares, count = engine.world.sums([math.fsum(one * one for one in residuals), float(len(residuals))])
    return math.sqrt(squares * count / (count - 1) * (1 - share)) if count > 1 else None


def collecting(task: Measured, statistics: list[Tensor]) -> Terms:
    """The task's terms; the statistics of each batch are added to a list."""

    def terms(model: Model, batch: Batch) -> dict[str, Term]:
        found, own = task.measured(model, batch)
        statistics.append(own.detach().cpu().double())
        return found

    return terms


def measure(
    model: Model, task: Measured, batches: Iterable[Batch], precision: Precision
) -> tuple[LossSum, dict[str, float]]:
    """The loss and the measures of a task over ``batches``."""
    statistics: list[Tensor] = []
    sums = sum_terms(collecting(task, statistics), model, task, batches, precision).values()
    loss = LossSum(math.fsum(term.total for term in sums), round(sum(term.targets for term in sums)))
    return loss, task.metrics(torch.stack(statistics).sum(0))


def judged(task: Task, measures: Mapping[str, object]) -> dict[str, float]:
    """The measure of an evaluation by which the task is judged, and its parts, such as by length; {} if by the loss."""
    best = task.best if isinstance(task, Measured) else None
    if best is None:
        return {}
    named = {key.removeprefix("validation_"): value for key, value in measures.items() if key.startswith("validation_")}
    mine = {name: value for name, value in named.items() if name == best or name.startswith(f"{best}_")}
    return {name: float(value) for name, value in mine.items() if isinstance(value, int | float)}


def in_words(measures: Mapping[str, float]) -> str:
    """Measures for a person.

    >>> in_words({"accuracy": 0.95, "accuracy_2x": 0.68})
    'accuracy 0.9500, accuracy 2x 0.6800'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measures.items())


def judged_in_words(task: Task, measures: Mapping[str, object]) -> str:
    """What follows the loss of an evaluation, such as ", accuracy 0.9500"; empty if the loss is all."""
    return f", {in_words(found)}" if (found := judged(task, measures)) else ""


def score(model: Model, task: Task, batches: Iterable[Batch], precision: Precision) -> LossSum:
    """The loss over ``batches``, summed over the task's terms."""
    sums = sum_terms(task.terms, model, task, batches, precision).values()
    return LossSum(math.fsum(term.total for term in sums), round(sum(term.targets for term in sums)))


@torch.no_grad()
def sum_terms(
    terms: Terms, model: Model, task: Task, batches: Iterable[Batch], precision: Precision, graphs: bool = False
) -> dict[str, LossSum]:
    """Each term of the task over all batches, in evaluation mode; empty without a batch.

    ``terms`` is the task's function, compiled or not; ``graphs``: as CUDA graphs.
    """
    totals, counts, found = [], [], {}
    was_training = model.training
    model.eval()
    try:
        with precision.autocast():
            for batch in batches:
                counts.append([float(count) for count in task.counts(batch).values()])
                if graphs:  # otherwise each batch becomes a new graph that depends on the previous one
                    torch.compiler.cudagraph_mark_step_begin()
                found = terms(model, move(batch, precision.device))
                totals.append(torch.stack([term.total for term in found.values()]))  # a copy: graphs reuse memory
    finally:
        model.train(was_training)
    if not totals:
        return {}
    # Summed on the host in float64, which not every device has.
    columns = zip(zip(*torch.stack(totals).tolist(), strict=True), zip(*counts, strict=True), strict=True)
    return {
        name: LossSum(math.fsum(total), math.fsum(count), term.weight, tuple(zip(total, count, strict=True)))
        for (name, term), (total, count) in zip(found.items(), columns, strict=True)
    }
