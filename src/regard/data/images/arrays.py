"""Labelled images as arrays, and the one file that each built-in source of them becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

Pixels = NDArray[np.uint8]


class LabeledImages(NamedTuple):
    """Images of one size and the numbers of their classes."""

    images: Pixels  # [N, M, Y, X]: M channels, Y rows, X columns
    labels: NDArray[np.int64]  # [N]

    def pick(self, numbers: NDArray[np.int64]) -> LabeledImages:
        """The images with these numbers."""
        return LabeledImages(self.images[numbers], self.labels[numbers])

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> LabeledImages:
        """No image of ``shape`` [M, Y, X]."""
        return cls(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int64))


class ImageSet(NamedTuple):
    """The images of a source: those to train on, those of its test part, and the names of the classes."""

    train: LabeledImages
    test: LabeledImages  # empty: the source has no test part
    labels: tuple[str, ...]


def pack(images: ImageSet) -> bytes:
    """An image set as a safetensors file, always the same bytes."""
    from safetensors.numpy import save

    arrays = {"train_images": images.train.images, "train_labels": images.train.labels.astype(np.uint8)}
    arrays |= {"test_images": images.test.images, "test_labels": images.test.labels.astype(np.uint8)}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(whole, {"labels": json.dumps(images.labels)})  # one entry: several would come in any order


def unpack(path: Path) -> ImageSet:
    """The image set of a file that ``pack`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            labels = tuple(json.loads((file.metadata() or {})["labels"]))
        train, test = (
            LabeledImages(arrays[f"{part}_images"], arrays[f"{part}_labels"].astype(np.int64))
            for part in ("train", "test")
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no whole file of images ({error}); remove it, and it is fetched again") from error
    return ImageSet(train, test, labels)


def idx_images(members: Mapping[str, bytes], names: tuple[str, ...]) -> bytes:
    """The packed images of four files in the format of MNIST: gray images, and labels from 0 on."""
    found = {name.rpartition("/")[2].removesuffix(".gz"): content for name, content in members.items()}

    def part(name: str) -> LabeledImages:
        pixels, labels = (read_idx(found[f"{name}-{what}-ubyte"]) for what in ("images-idx3", "labels-idx1"))
        return LabeledImages(pixels[:, None], labels.astype(np.int64))

    return pack(ImageSet(part("train"), part("t10k"), names))


def read_idx(content: bytes) -> Pixels:
    """An array of bytes in the format of MNIST: two zeros, 8 (bytes), the number of axes, their sizes, the values."""
    axes = content[3]
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * axes:
        raise ValueError("it is no IDX file of bytes")
    shape = np.frombuffer(content, ">u4", axes, 4).astype(np.int64)
    return np.frombuffer(content, np.uint8, int(shape.prod()), 4 + 4 * axes).reshape(shape)
