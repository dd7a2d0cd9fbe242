"""Fashion-MNIST: 70,000 pieces of clothing of 28 x 28 pixels, in the format of MNIST (Xiao et al. 2017).

From the Debian package `dataset-fashion-mnist`.
"""

import gzip
from collections.abc import Mapping

from regard.data.images.arrays import idx_images
from regard.data.origins.debian import DebianPackage
from regard.data.origins.source import Source

_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _assemble(members: Mapping[str, bytes]) -> bytes:
    return idx_images({name: gzip.decompress(content) for name, content in members.items()}, _NAMES)


SOURCE = Source(
    name="fashion-mnist",
    title="70,000 pieces of clothing of 28 x 28 pixels in 10 classes, 10,000 of them for a test",
    license="MIT",
    terms="copyright in the package: MIT, Zalando SE",
    file="fashion_mnist.safetensors",
    sha256="870d6cd29ee356a71e8677e8822d159e05bd123821bfec9ba2805c45f769987e",
    size=54_950_488,
    origin=DebianPackage(
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        members=("usr/share/datasets/fashion-mnist/*.gz",),
        assemble=_assemble,
    ),
    labels="images",
)
