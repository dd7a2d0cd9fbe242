"""Fine-tuning tasks of encoders: classes of texts, tags of words, answers in passages (Devlin et al. 2019, sec. 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data, LabeledBatch
from regard.data.examples import ExampleData
from regard.data.labeled.data import LabeledData
from regard.errors import UserError
from regard.models import Encoder, EncoderConfig, Model, ModelConfig
from regard.nn.heads import ClassesHeadConfig, HeadActivation, HeadConfig, SpansHeadConfig, TokenClassesHeadConfig
from regard.tasks.base import Measured, TaskConfig, Term, with_auxiliary_losses
from regard.tasks.entities import entities, has_entities
from regard.tasks.language import count_targets


@dataclass(frozen=True)
class LabeledTaskConfig(TaskConfig):
    """Base class: a task with labelled examples."""

    trains, examples = Encoder, LabeledData
    kinds_of_data = "labelled text: --data classes or tags"

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The encoder with the head of this task."""
        assert isinstance(data, LabeledData)
        if not isinstance(model, EncoderConfig):
            raise UserError(f"the task {self.kind} puts a head on an encoder, and this model is a {model.kind}")
        return replace(model, head=self.head(data), classes=None)

    def head(self, data: LabeledData) -> HeadConfig:
        """The head for the labels of ``data``."""
        raise NotImplementedError


@dataclass(frozen=True)
class WeightedTaskConfig(LabeledTaskConfig):
    """Base class: a task whose labels may have weights in the loss."""

    balanced: bool = option(False, "class weights: in the loss, each class counts by the inverse of its frequency")
    weights: tuple[float, ...] = option((), "a weight in the loss for each class, in order (default: 1)", least=0)
    labels: tuple[str, ...] = option((), "the names of the classes, written by the run")

    def fit(self, data: Data) -> Self:
        super().fit(data)
        assert isinstance(data, LabeledData | ExampleData)
        if not data.labels:
            raise UserError(f"the task {self.kind} needs labels, and {data.name} has none; choose another --task")
        if self.weights and not self.balanced and len(self.weights) != len(data.labels):
            raise UserError(f"{len(self.weights)} weights are given for {len(data.labels)} classes; give one for each")
        weights = self.weights
        if self.balanced:  # n / (classes · n_k): their mean over the training examples is 1
            counts = torch.from_numpy(data.frequencies).clamp(min=1)
            weights = tuple((counts.sum() / (len(counts) * counts)).tolist())
        return replace(self, weights=weights, labels=data.labels)


@dataclass(frozen=True)
class ClassificationConfig(WeightedTaskConfig, kind="classification"):
    """Predict the class of a text."""

    pool: Literal["cls", "mean"] = option("cls", "classify by the first token, or by the mean of all")
    dense: HeadActivation | None = option("tanh", "a dense layer with this activation before the output layer")

    def head(self, data: LabeledData) -> HeadConfig:
        return ClassesHeadConfig(len(data.labels), data.labels, pool=self.pool, dense=self.dense)

    def build(self) -> ClassificationTask:
        return ClassificationTask(self)


@dataclass(frozen=True)
class TaggingConfig(WeightedTaskConfig, kind="tagging"):
    """Predict a tag for each word."""

    def head(self, data: LabeledData) -> HeadConfig:
        return TokenClassesHeadConfig(len(data.labels), data.labels)

    def build(self) -> TaggingTask:
        return TaggingTask(self)


@dataclass(frozen=True)
class AnsweringConfig(LabeledTaskConfig, kind="answering"):
    """Predict where the answer to a question begins and ends in a passage."""

    def head(self, data: LabeledData) -> HeadConfig:
        return SpansHeadConfig()

    def build(self) -> AnsweringTask:
        return AnsweringTask(self)


class ClassificationTask(Measured[WeightedTaskConfig]):
    """The cross entropy of the class. Measures: accuracy, and F1 as the mean over the classes."""

    name, best = "label", "accuracy"

    def counts(self, batch: LabeledBatch) -> dict[str, Tensor]:
        return {self.name: count_targets(batch.targets)}

    def measured(self, model: Any, batch: Any) -> tuple[dict[str, Term], Tensor]:
        logits, further, details = outputs(model, self._arguments(model, batch))
        scores = self._scores(logits, batch)
        if scores.ndim == 2:  # one row for a text
            scores = scores[:, None]
        term = Term(self._loss(scores, batch), count_targets(batch.targets), details=details)
        return {self.name: term, **further}, self._statistics(scores, batch.targets)

    def _arguments(self, model: Any, batch: Any) -> tuple[Any, ...]:
        """What the model is called with."""
        return _arguments(model, batch)

    def _scores(self, logits: Tensor, batch: Any) -> Tensor:
        """Log-probabilities of the classes; of a text in windows, their mean."""
        return window_means(logits.log_softmax(-1), batch.texts, len(batch.targets))

    def _loss(self, scores: Tensor, batch: Any) -> Tensor:
        """The summed loss of scores [B, N, classes]."""
        return self._losses(F.nll_loss, scores, batch.targets).sum()

    def _losses(self, kind: Callable[..., Tensor], scores: Tensor, targets: Tensor, **options: float) -> Tensor:
        """The loss of each target [B, N], flat; 0 where it does not count."""
        weight = scores.new_tensor(self.config.weights) if self.config.weights else None
        each = {"ignore_index": IGNORE_INDEX, "reduction": "none", **options}
        return kind(scores.flatten(0, 1), targets.flatten(), weight, **each)

    def _statistics(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The confusion matrix, flat: of each class, how often each was predicted."""
        counted, classes = targets != IGNORE_INDEX, scores.shape[-1]
        pairs = targets[counted] * classes + scores.argmax(-1)[counted]
        return torch.bincount(pairs, minlength=classes**2).double()

    def metrics(self, sums: Tensor) -> dict[str, float]:
        classes = len(self.config.labels)
        return classification_metrics(sums[: classes**2].view(classes, classes))


class TaggingTask(ClassificationTask):
    """The cross entropy of the tags. Measures: accuracy and, of tags such as B-PER, precision, recall and F1."""

    name = "tag"

    def __init__(self, config: WeightedTaskConfig):
        super().__init__(config)
        self.finds_entities = has_entities(config.labels)
        self.best = "entity_f1" if self.finds_entities else "accuracy"

    def _statistics(self, scores: Tensor, targets: Tensor) -> Tensor:
        confusion = super()._statistics(scores, targets)
        if not self.finds_entities:
            return confusion
        counts = torch.zeros(3, dtype=confusion.dtype)  # right, predicted, in the data
        for row, predicted in zip(targets.tolist(), scores.argmax(-1).tolist(), strict=True):
            places = [place for place, target in enumerate(row) if target != IGNORE_INDEX]
            given, found = (entities([self.config.labels[tags[n]] for n in places]) for tags in (row, predicted))
            counts += torch.tensor([len(given & found), len(found), len(given)])
        return torch.cat((confusion, counts.to(confusion.device)))

    def metrics(self, sums: Tensor) -> dict[str, float]:
        found = super().metrics(sums)
        if self.finds_entities:
            right, predicted, given = sums[-3:].tolist()
            found["entity_precision"], found["entity_recall"] = right / max(predicted, 1), right / max(given, 1)
            found["entity_f1"] = 2 * right / max(predicted + given, 1)
        return found


class AnsweringTask(Measured[AnsweringConfig]):
    """The cross entropy of both ends of the answer. Measures, by tokens: exact match, and F1 of the overlap."""

    best = "span_f1"

    def counts(self, batch: LabeledBatch) -> dict[str, Tensor]:
        return {"span": count_targets(batch.targets)}

    def measured(self, model: Encoder, batch: LabeledBatch) -> tuple[dict[str, Term], Tensor]:
        logits, further, details = outputs(model, _arguments(model, batch))
        logits = span_logits(logits, batch)
        total = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        counted = batch.targets[:, 0] != IGNORE_INDEX
        gold, found = batch.targets[counted], best_spans(logits[counted])
        shared = (torch.minimum(gold[:, 1], found[:, 1]) - torch.maximum(gold[:, 0], found[:, 0]) + 1).clamp(min=0)
        length = (gold[:, 1] - gold[:, 0]) + (found[:, 1] - found[:, 0]) + 2
        sums = torch.stack(
            [(gold == found).all(1).double().sum(), (2.0 * shared / length).double().sum(), counted.sum()]
        )
        return {"span": Term(total, count_targets(batch.targets), details=details), **further}, sums

    def metrics(self, sums: Tensor) -> dict[str, float]:
        exact, overlap, count = sums.tolist()
        return {"span_exact": exact / max(count, 1), "span_f1": overlap / max(count, 1)}


def _arguments(model: Encoder, batch: LabeledBatch) -> tuple[Any, ...]:
    return batch.inputs, batch.slots, batch.types if model.token_types else None


def outputs(model: Model, arguments: tuple[Any, ...]) -> tuple[Tensor, dict[str, Term], dict[str, Tensor] | None]:
    """The outputs of the head in at least float32, and the model's auxiliary losses."""
    found, further, details = with_auxiliary_losses(model, partial(model, *arguments))
    return found.to(torch.promote_types(found.dtype, torch.float32)), further, details


def window_means(scores: Tensor, texts: Tensor | None, count: int) -> Tensor:
    """Scores of windows [B, classes] to their means for each of ``count`` texts; None: each row is a text."""
    if texts is None:
        return scores
    sums = scores.new_zeros(count, scores.shape[-1]).index_add(0, texts, scores)
    return sums / texts.bincount(minlength=count)[:, None]


def span_logits(outputs: Tensor, batch: LabeledBatch) -> Tensor:
    """Outputs [B, N, 2] to logits of the ends of an answer [B, 2, N]: in the passage, or at the first token (none)."""
    place = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
    possible = (batch.types == 1) | (place == 0)
    return outputs.transpose(1, 2).masked_fill(~possible[:, None], -torch.inf)


def best_spans(logits: Tensor, longest: int = 30) -> Tensor:
    """The most likely spans [B, 2] of at most ``longest`` tokens, by logits [B, 2, N] of their ends."""
    scores = logits[:, 0, :, None] + logits[:, 1, None, :]  # [B, N, N]: start, end
    allowed = torch.ones_like(scores[0], dtype=torch.bool).triu().tril(longest - 1)
    best = scores.masked_fill(~allowed, -torch.inf).flatten(1).argmax(1)
    size = logits.shape[-1]
    return torch.stack((best // size, best % size), dim=1)


def classification_metrics(confusion: Tensor) -> dict[str, float]:
    """Accuracy, and the mean of the classes' F1, from a confusion matrix [given, predicted].

    Classes that were neither given nor predicted do not count, as in scikit-learn.
    """
    right, given, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    seen = given + predicted > 0
    f1 = 2 * right[seen] / (given + predicted)[seen]
    return {"accuracy": float(right.sum() / confusion.sum().clamp(min=1)), "f1": float(f1.mean()) if len(f1) else 0.0}
