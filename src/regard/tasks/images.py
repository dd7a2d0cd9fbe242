"""Classes of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from regard.data.base import Data, ImageBatch
from regard.data.images.data import ImageData
from regard.errors import UserError
from regard.models import ImageConfig, ImageEncoder, ModelConfig
from regard.tasks.arrays import ArrayClassificationConfig, ArrayClassificationTask


@dataclass(frozen=True)
class ImageClassificationConfig(ArrayClassificationConfig, kind="image-classification"):
    """Predict the class of an image."""

    trains, examples = ImageEncoder, ImageData
    kinds_of_data, unit = "images: --data images", "image"

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with a head for the classes of ``data``."""
        assert isinstance(data, ImageData)
        if isinstance(model, ImageConfig) and data.shape[0] != model.channels:  # a pretrained one keeps its channels
            raise UserError(f"the model reads {model.channels} channels, but {data.name} has {data.shape[0]}")
        return super().model_for(model, data)

    def build(self) -> ImageClassificationTask:
        return ImageClassificationTask(self)


class ImageClassificationTask(ArrayClassificationTask):
    """The cross entropy of the class; of a mixed image, of both classes by their weights."""

    def _loss(self, scores: Tensor, batch: Any) -> Tensor:
        assert isinstance(batch, ImageBatch)
        if batch.others is None or batch.weights is None:
            return super()._loss(scores, batch)
        smoothing = self.config.smoothing
        first, second = (
            self._losses(F.cross_entropy, scores, targets, label_smoothing=smoothing)
            for targets in (batch.targets, batch.others)
        )
        return (batch.weights * first + (1 - batch.weights) * second).sum()
