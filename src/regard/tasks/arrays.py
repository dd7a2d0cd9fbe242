"""Classes of arrays: images, sounds, time series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import Data
from regard.data.examples import ExampleData
from regard.errors import UserError
from regard.models import ArrayEncoder, ModelConfig
from regard.tasks.base import Predicting, Prediction
from regard.tasks.labeled import ClassificationTask, WeightedTaskConfig


@dataclass(frozen=True)
class ArrayClassificationConfig(WeightedTaskConfig, kind="array-classification"):
    """Predict the class of a sound, a time series or another array."""

    trains, examples = ArrayEncoder, ExampleData
    kinds_of_data, unit = "labelled arrays, such as --data images", "example"
    pool: Literal["cls", "mean"] | None = option(
        None, "classify by the class token, or by the mean of the parts (default: by the class token if there is one)"
    )
    smoothing: float = option(
        0.0, "label smoothing: the share of the target that all classes have in common", least=0, below=1
    )

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with a head for the classes of ``data``."""
        assert isinstance(data, ExampleData)
        if model.reads == "text":
            raise UserError(f"the task {self.kind} trains a model of arrays, and this one, a {model.kind}, reads text")
        return model.with_classes(data.labels, self.pool)

    def build(self) -> ArrayClassificationTask:
        return ArrayClassificationTask(self)


class ArrayClassificationTask(ClassificationTask, Predicting):
    """The cross entropy of the class."""

    config: ArrayClassificationConfig

    def _arguments(self, model: Any, batch: Any) -> tuple[Any, ...]:
        return batch.arguments

    def _scores(self, logits: Tensor, batch: Any) -> Tensor:
        return logits

    def _loss(self, scores: Tensor, batch: Any) -> Tensor:
        return self._losses(F.cross_entropy, scores, batch.targets, label_smoothing=self.config.smoothing).sum()

    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The most likely class of each row, and the probabilities of all."""
        labels = self.config.labels or model.config.head.names  # of an imported model, its own
        return [class_prediction(labels, row) for row in model(*batch.arguments).float().softmax(-1).tolist()]


def class_prediction(labels: Sequence[str], probabilities: Sequence[float]) -> Prediction:
    """The most likely class."""
    shares = dict(zip(labels, probabilities, strict=True))
    label = max(shares, key=shares.__getitem__)
    record = {"label": label, "probability": shares[label], "probabilities": shares}
    return Prediction(f"{label}  {shares[label]:.3f}", record)
