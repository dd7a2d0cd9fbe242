"""Batches of labelled images. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Example, ImageBatch
from regard.data.examples import ExampleData, Part, Uniform
from regard.data.images.arrays import LabeledImages
from regard.data.images.folder import image_files, read_image
from regard.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from regard.models import ModelConfig

RESIDENT = 2**33  # bytes of images that are kept on an accelerator; of more, each batch is sent there


class Augmentation(NamedTuple):
    """How training images are changed; the defaults change nothing."""

    crop: int = 0
    flip: bool = False
    affine: float = 0.0
    color: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


class ImageData(ExampleData[ImageBatch]):
    """Labelled images in three parts."""

    sha256: str
    shape: tuple[int, ...]
    draws = 20

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
        self._pixels: dict[Part, Tensor] = {}  # the images of each part, where batches are made

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each class occurs in the training part, [classes]."""
        return np.bincount(self.train.labels, minlength=len(self.labels))

    def to(self, device: torch.device) -> None:
        """Keep the images on ``device``, where batches are then made and changed."""
        parts: dict[Part, Tensor] = {name: self._images(name) for name in get_args(Part)}
        if sum(images.nbytes for images in parts.values()) <= RESIDENT:
            self._pixels = {name: images.to(device) for name, images in parts.items()}

    def part_batch(self, part: Part, numbers: NDArray[np.int64], *, counts: bool = True) -> ImageBatch:
        labels = self._part(part).labels[numbers] if counts else np.full(len(numbers), IGNORE_INDEX)
        return _batch(self._picked(part, numbers), labels)

    def train_batch(self, numbers: NDArray[np.int64], random: Uniform) -> ImageBatch:
        from regard.data.images.augment import cutmix, mixup

        change, labels = self.augmentation, self.train.labels
        images = self._changed(numbers, random[:, :15])
        if not change.mixup and not change.cutmix:
            return _batch(images, labels[numbers])
        # Another image of the whole part, so that a batch in parts is the same as at once.
        partners = (random[:, 15] * len(labels)).astype(np.int64)
        others, choice = self._changed(partners, 1 - random[:, :15]), random[:, 16]
        weights, full = random[:, 17].astype(np.float32), np.float32(1)
        mixed = np.where(choice < change.mixup, weights, full)
        images = mixup(images, others, mixed)
        cut = (change.mixup <= choice) & (choice < change.mixup + change.cutmix)
        images, kept = cutmix(images, others, np.where(cut, weights, full), random[:, 18:])
        return _batch(images, labels[numbers], labels[partners], mixed * kept)

    def _part(self, part: Part) -> LabeledImages:
        return {"train": self.train, "validation": self.validation, "test": self.test}[part]

    def _images(self, part: Part) -> Tensor:
        import torch  # not at the top: configs are read without torch

        return torch.from_numpy(self._part(part).images)

    def _picked(self, part: Part, numbers: NDArray[np.int64]) -> Tensor:
        """Images of a part as numbers from -1 to 1."""
        import torch

        images = self._pixels[part] if part in self._pixels else self._images(part)
        return to_floats(images[torch.from_numpy(numbers).to(images.device)])

    def _changed(self, numbers: NDArray[np.int64], random: Uniform) -> Tensor:
        """Training images after augmentation; ``random`` [B, 15]."""
        return changed(self._picked("train", numbers), random, self.augmentation)


def changed(images: Tensor, random: Uniform, change: Augmentation, fill: float = -1.0) -> Tensor:
    """Images after augmentation of each alone, with ``fill`` beyond their edges; ``random`` [B, 15]."""
    from regard.data.images.augment import affine, color, crop, erase, flip

    if change.crop:
        images = crop(images, random[:, :2], change.crop, fill)
    if change.flip:
        images = flip(images, random[:, 2])
    if change.affine:
        images = affine(images, random[:, 8:12], change.affine, fill)
    if change.color:
        images = color(images, random[:, 12:15], change.color)
    return erase(images, random[:, 3:8], change.erase) if change.erase else images


def to_floats(images: Tensor) -> Tensor:
    """Pixels from 0 to 255 as numbers from -1 to 1, as ViT's own code scales them."""
    return images.float() / 127.5 - 1


def attended_image(images: Tensor, weights: Tensor) -> str:
    """An SVG of the first image with its patches, by weights [1, N]."""
    from regard.pages.heat import image_picture

    pixels = ((images[0].float().cpu() + 1) * 127.5).round().clamp(0, 255).byte().permute(1, 2, 0)
    rows, columns = pixels.shape[:2]
    across = round((weights.shape[1] * columns / rows) ** 0.5)
    return image_picture(pixels.numpy(), weights[0].unflatten(0, (-1, across)).numpy())


def image_examples(path: Path, model: ModelConfig) -> list[Example]:
    """An image file, or those below a folder, in the size that the model was trained on."""
    return [unlabeled(str(file), image) for file, image in read_images(path, model)]


def read_images(path: Path, model: ModelConfig) -> list[tuple[Path, Tensor]]:
    """The same as arrays [M, Y, X], with their files."""
    from regard.models import CaptionerConfig, ImageConfig, PerceiverConfig, TextToImageConfig, TwoTowersConfig

    while isinstance(model, TwoTowersConfig | CaptionerConfig | PerceiverConfig):  # the part that reads images
        model = model.image if isinstance(model, TwoTowersConfig) else model.encoder
    if not isinstance(model, ImageConfig | TextToImageConfig):
        raise UserError(f"a {model.kind} reads no images")
    files = image_files(path) if path.is_dir() else [path]
    sides = (model.image, model.image)
    import torch

    return [(file, to_floats(torch.from_numpy(read_image(file, model.channels, sides)))) for file in files]


def unlabeled(name: str, image: Tensor) -> Example:
    """An image, or another array, without a class."""
    return Example(name, _batch(image[None], np.full(1, IGNORE_INDEX)))


def _batch(
    images: Tensor,
    labels: NDArray[np.int64],
    others: NDArray[np.int64] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> ImageBatch:
    import torch

    targets = torch.from_numpy(labels.astype(np.int64))[:, None]
    if others is None or weights is None:
        return ImageBatch(images, targets)
    return ImageBatch(images, targets, torch.from_numpy(others.astype(np.int64))[:, None], torch.from_numpy(weights))


def _fingerprint(parts: tuple[LabeledImages, ...], labels: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr((labels, [part.images.shape for part in parts])).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part.images).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()
