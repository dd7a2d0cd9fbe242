"""Batches of labelled images. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Data, ImageBatch
from regard.data.images.arrays import LabeledImages, Pixels
from regard.data.images.augment import Floats, Uniform, crop, erase, flip, mixup

WORDS = 2**64
DRAWS = 11  # random numbers for each image


class Augmentation(NamedTuple):
    """How training images are changed; the defaults change nothing."""

    crop: int = 0
    flip: bool = False
    erase: float = 0.0
    mixup: float = 0.0


def to_floats(images: Pixels) -> Floats:
    """Pixels from 0 to 255 as numbers from -1 to 1, as ViT's own code scales them."""
    return images.astype(np.float32) / np.float32(127.5) - np.float32(1)


class ImageData(Data[ImageBatch]):
    """Labelled images in three parts."""

    sha256: str
    image: tuple[int, int, int]

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
        self.labels, self.name = labels, name
        self.augmentation = Augmentation() if augmentation is None else augmentation
        channels, rows, columns = self.train.images.shape[1:]
        self.image = (channels, rows, columns)
        self.validation_count, self.test_count = len(self.validation.labels), len(self.test.labels)
        self.sha256 = _fingerprint(parts, labels)
        self._order = lru_cache(2)(self._shuffled)

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each class occurs in the training part, [classes]."""
        return np.bincount(self.train.labels, minlength=len(self.labels))

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> ImageBatch:
        """Part ``rank`` of the batch of a step: ``size`` images; every image occurs once in an epoch."""
        count, total = len(self.train.labels), size * world
        place = np.arange(step * total + rank, (step + 1) * total, world)
        epochs = place // count
        numbers = np.concatenate(
            [self._order(seed, int(epoch))[place[epochs == epoch] % count] for epoch in np.unique(epochs)]
        )
        return self._augmented(numbers, _draws(seed, step, total)[rank::world])

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[ImageBatch]:
        """The validation part in order; over all ranks each image once."""
        return _in_order(self.validation, size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[ImageBatch]:
        """The test part, in the same way."""
        return _in_order(self.test, size, rank, world)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every training image occurs once."""
        return len(self.train.labels) / (size * world)

    def _shuffled(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The order of the images in an epoch."""
        generator = np.random.Philox(key=(seed % WORDS) << 64 | epoch % WORDS)
        return np.argsort(generator.random_raw(len(self.train.labels)), kind="stable")

    def _augmented(self, numbers: NDArray[np.int64], random: Uniform) -> ImageBatch:
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


def _draws(seed: int, step: int, count: int) -> Uniform:
    """Random numbers in [0, 1), [count, 11]; the upper half of the counter keeps them apart from the orders."""
    generator = np.random.Philox(counter=1 << 192, key=(seed % WORDS) << 64 | step % WORDS)
    words = (generator.random_raw(count * DRAWS) >> np.uint64(11)).astype(np.float64)  # 53 bits are exact
    return (words * 2.0**-53).reshape(count, DRAWS)


def _in_order(part: LabeledImages, size: int, rank: int, world: int) -> Iterator[ImageBatch]:
    for start in range(0, len(part.labels), size * world):
        numbers = np.arange(start, min(start + size * world, len(part.labels)))[rank::world]
        chosen = part.pick(numbers)
        if len(numbers):
            yield _batch(to_floats(chosen.images), chosen.labels)
        else:  # every rank needs a batch: an image without a target
            yield _batch(to_floats(part.images[:1]), np.full(1, IGNORE_INDEX))


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
