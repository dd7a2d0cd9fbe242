"""The classes of images, by a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.data.images.arrays import Pixels
from regard.data.images.data import to_floats
from regard.data.images.folder import SUFFIXES, read_image
from regard.errors import UserError
from regard.generate.predict import ClassPrediction
from regard.models.base import Model
from regard.models.device import parameter_device
from regard.models.vit import ViT
from regard.nn.heads import ClassesHeadConfig

AT_ONCE = 64  # images in a batch


class ImagePredictor:
    """Predictions by an image model in evaluation mode."""

    def __init__(self, model: Model):
        if not isinstance(model, ViT) or not isinstance(model.config.head, ClassesHeadConfig):
            raise UserError("this model has no head for classes of images; train one: regard train digits")
        self.model, self.head = model, model.config.head

    def read(self, path: Path) -> Pixels:
        """An image file in the size that the model was trained on."""
        side = self.model.config.image
        return read_image(path, self.model.channels, (side, side))

    @torch.no_grad()
    def classes(self, images: Sequence[Pixels]) -> list[ClassPrediction]:
        """The class of each image [M, Y, X]."""
        device, found = parameter_device(self.model), []
        for start in range(0, len(images), AT_ONCE):
            some = torch.stack([torch.from_numpy(to_floats(image)) for image in images[start : start + AT_ONCE]])
            logits = self.model(some.to(device)).float().cpu()
            found += [ClassPrediction.of(self.head.names, row) for row in logits]
        return found


def image_files(path: Path) -> list[Path]:
    """The image file, or those below a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise UserError(f"{path} has no image; images end with {', '.join(SUFFIXES)}")
    return files
