"""Classes of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import Data, ImageBatch
from regard.data.images.data import ImageData
from regard.errors import UserError
from regard.models import ImageEncoder, ModelConfig, ViTConfig
from regard.nn.heads import ClassesHeadConfig
from regard.tasks.labeled import ClassificationTask, WeightedTaskConfig


@dataclass(frozen=True)
class ImageClassificationConfig(WeightedTaskConfig, kind="image-classification"):
    """Predict the class of an image."""

    trains, examples = ImageEncoder, ImageData
    kinds_of_data, unit = "images: --data images", "image"
    pool: Literal["cls", "mean"] | None = option(
        None, "classify by the class token, or by the mean of the patches (default: by the class token if there is one)"
    )
    smoothing: float = option(0.0, "label smoothing: the share of the target that all classes have in common")

    def check(self) -> None:
        super().check()
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, not {self.smoothing}")

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with a head for the classes of ``data``."""
        assert isinstance(data, ImageData)
        if not isinstance(model, ViTConfig):
            raise UserError(f"the task {self.kind} puts a head on a vit, and this model is a {model.kind}")
        if data.image[0] != model.channels:
            raise UserError(f"the model reads {model.channels} channels, but {data.name} has {data.image[0]}")
        pool = self.pool or ("cls" if model.class_token else "mean")
        return replace(model, head=ClassesHeadConfig(len(data.labels), data.labels, pool=pool))

    def build(self) -> ImageClassificationTask:
        return ImageClassificationTask(self)


class ImageClassificationTask(ClassificationTask):
    """The cross entropy of the class; of a mixed image, of both classes by their weights."""

    config: ImageClassificationConfig

    def _arguments(self, model: Any, batch: Any) -> tuple[Any, ...]:
        return (batch.inputs,)

    def _scores(self, logits: Tensor, batch: Any) -> Tensor:
        return logits

    def _loss(self, scores: Tensor, batch: Any) -> Tensor:
        assert isinstance(batch, ImageBatch)
        smoothing = self.config.smoothing
        first = self._losses(F.cross_entropy, scores, batch.targets, label_smoothing=smoothing)
        if batch.others is None or batch.weights is None:
            return first.sum()
        second = self._losses(F.cross_entropy, scores, batch.others, label_smoothing=smoothing)
        return (batch.weights * first + (1 - batch.weights) * second).sum()
