"""Batches of labelled images. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Example, ImageBatch
from regard.data.examples import ExampleData, Part, Uniform
from regard.data.images.arrays import LabeledImages, Pixels
from regard.data.images.augment import Floats, crop, erase, flip, mixup
from regard.data.images.folder import image_files, read_image
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig


class Augmentation(NamedTuple):
    """How training images are changed; the defaults change nothing."""

    crop: int = 0
    flip: bool = False
    erase: float = 0.0
    mixup: float = 0.0


def to_floats(images: Pixels) -> Floats:
    """Pixels from 0 to 255 as numbers from -1 to 1, as ViT's own code scales them."""
    return images.astype(np.float32) / np.float32(127.5) - np.float32(1)


class ImageData(ExampleData[ImageBatch]):
    """Labelled images in three parts."""

    sha256: str
    shape: tuple[int, ...]
    draws = 11

    def __init__(
        self,
        parts: tuple[LabeledImages, LabeledImages, LabeledImages],
        labels: tuple[str, ...],
        *,
        name: str,
        augmentation: Augmentation | None = None,
    ) -> None:
        """``parts``: train, validation, test; ``labels``: the names of the classes."""
        self.train, self.validation, self.test = parts
        super().__init__((len(parts[0].labels), len(parts[1].labels), len(parts[2].labels)), name)
        self.labels = labels
        self.augmentation = Augmentation() if augmentation is None else augmentation
        self.shape = self.train.images.shape[1:]
        self.sha256 = _fingerprint(parts, labels)

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each class occurs in the training part, [classes]."""
        return np.bincount(self.train.labels, minlength=len(self.labels))

    def part_batch(self, part: Part, numbers: NDArray[np.int64], *, counts: bool = True) -> ImageBatch:
        chosen = {"train": self.train, "validation": self.validation, "test": self.test}[part].pick(numbers)
        return _batch(to_floats(chosen.images), chosen.labels if counts else np.full(len(numbers), IGNORE_INDEX))

    def train_batch(self, numbers: NDArray[np.int64], random: Uniform) -> ImageBatch:
        change = self.augmentation
        images, labels = self._changed(numbers, random[:, :8]), self.train.labels[numbers]
        if not change.mixup:
            return _batch(images, labels)
        # Another image of the whole part, so that a batch in parts is the same as at once.
        partners = (random[:, 8] * len(self.train.labels)).astype(np.int64)
        weights = np.where(random[:, 9] < change.mixup, random[:, 10], 1.0).astype(np.float32)
        mixed = mixup(images, self._changed(partners, 1 - random[:, :8]), weights)
        return _batch(mixed, labels, self.train.labels[partners], weights)

    def _changed(self, numbers: NDArray[np.int64], random: Uniform) -> Floats:
        """These images after crop, flip and erasing; ``random`` [B, 8]."""
        change, images = self.augmentation, to_floats(self.train.images[numbers])
        if change.crop:
            images = crop(images, random[:, :2], change.crop)
        if change.flip:
            images = flip(images, random[:, 2])
        return erase(images, random[:, 3:8], change.erase) if change.erase else images


def image_examples(path: Path, model: ModelConfig) -> list[Example]:
    """An image file, or those below a folder, in the size that the model was trained on."""
    return [unlabeled(str(file), image) for file, image in read_images(path, model)]


def read_images(path: Path, model: ModelConfig) -> list[tuple[Path, Floats]]:
    """The same as arrays [M, Y, X], with their files."""
    from regard.models import TextToImageConfig, ViTConfig

    if not isinstance(model, ViTConfig | TextToImageConfig):
        raise UserError(f"a {model.kind} reads no images")
    files = image_files(path) if path.is_dir() else [path]
    sides = (model.image, model.image)
    return [(file, to_floats(read_image(file, model.channels, sides))) for file in files]


def unlabeled(name: str, image: Floats) -> Example:
    """An image, or another array, without a class."""
    return Example(name, _batch(image[None], np.full(1, IGNORE_INDEX)))


def _batch(
    images: Floats,
    labels: NDArray[np.int64],
    others: NDArray[np.int64] | None = None,
    weights: Floats | None = None,
) -> ImageBatch:
    import torch  # not at the top: configs are read without torch

    targets = torch.from_numpy(labels.astype(np.int64))[:, None]
    inputs = torch.from_numpy(np.ascontiguousarray(images, np.float32))
    if others is None or weights is None:
        return ImageBatch(inputs, targets)
    return ImageBatch(inputs, targets, torch.from_numpy(others.astype(np.int64))[:, None], torch.from_numpy(weights))


def _fingerprint(parts: tuple[LabeledImages, ...], labels: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr((labels, [part.images.shape for part in parts])).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part.images).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()
