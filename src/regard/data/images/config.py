"""Which images an experiment trains on: a built-in source, or a folder of the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.config import option
from regard.data.base import DataConfig, Example
from regard.data.images.arrays import ImageSet, LabeledImages, unpack
from regard.data.images.data import Augmentation, ImageData, attended_image, image_examples
from regard.data.images.folder import read_folder, read_image
from regard.data.origins.cache import cache_folder
from regard.data.sources import check_form, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

FORM = "images"  # what sources name


@dataclass(frozen=True)
class ImagesConfig(DataConfig, kind="images"):
    """Images and their classes."""

    path: str | None = option(
        None, "a folder of your own with a folder of images for each class (in train/ and test/, if both are given)"
    )
    source: str = option("digits", "the images to fetch when no path is given; `regard data` lists them")
    size: int | None = option(None, "with a path: rows and columns of the images; default: those of the first")
    channels: int = option(3, "with a path: 3 for color, 1 for gray")
    validation: float = option(0.1, "the fraction of the training images held out for evaluation")
    test: float = option(0.1, "the fraction held out for a final test, unless the images have a test part")
    limit: int | None = option(None, "train on the first images of the training part only, this many")
    crop: int = option(0, "augmentation: shift images by up to this many pixels")
    flip: bool = option(False, "augmentation: mirror every other image")
    affine: float = option(0.0, "augmentation: rotate (1: up to 29 degrees), scale and shear images this much")
    color: float = option(0.0, "augmentation: change brightness, contrast and saturation by up to this")
    erase: float = option(0.0, "augmentation: fill a rectangle of this share of the images")
    mixup: float = option(0.0, "augmentation: mix this share of the images with others, and their classes alike")
    cutmix: float = option(0.0, "augmentation: put a rectangle of another image into this share of the images")
    batch: int = option(64, "images per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("size", "limit", "batch"):
            if (value := vars(self)[name]) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (gray) or 3 (color), not {self.channels}")
        if self.crop < 0:
            raise ValueError(f"crop must be at least 0, not {self.crop}")
        for name in ("affine", "color", "erase", "mixup", "cutmix"):
            if not 0 <= vars(self)[name] <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {vars(self)[name]}")
        if self.mixup + self.cutmix > 1:
            raise ValueError(
                f"mixup and cutmix are shares of all images, so together at most 1, not {self.mixup + self.cutmix:g}"
            )
        if self.path is None:
            check_form(self.source, FORM)

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> ImageData:
        """Read and divide the images; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        name = self.path or self.source
        given = self.read(cache)
        train, validation, test = divided(given, self.validation, self.test)
        parts = (LabeledImages(train.images[: self.limit], train.labels[: self.limit]), validation, test)
        if not len(train.labels):
            raise UserError(f"no image of {name} is left for training; lower --data.validation and --data.test")
        change = Augmentation(**{name: getattr(self, name) for name in Augmentation._fields})
        return ImageData(parts, given.labels, name=name, augmentation=change)

    def read(self, cache: Path | None = None) -> ImageSet:
        """The images before they are divided."""
        if self.path is not None:
            folder, channels = Path(self.path).expanduser(), self.channels
            return read_folder(folder, self.size, lambda path, size: read_image(path, channels, size))
        return unpack(find_source(self.source).fetch(cache or cache_folder()))

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return attended_image(batch.inputs, weights) if batch.inputs.ndim == 4 else None  # no clips

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        return image_examples(path, model)


def divided(given: ImageSet, validation: float, test: float) -> tuple[LabeledImages, LabeledImages, LabeledImages]:
    """Training, validation and test; the content of an image decides its part, so equal ones stay together."""
    groups = [hashlib.sha256(image).hexdigest() for image in given.train.images]
    own = len(given.test.labels) > 0
    parts = [given.train.pick(np.array(part, np.int64)) for part in divide(groups, validation, 0.0 if own else test)]
    return parts[0], parts[1], given.test if own else parts[2]
