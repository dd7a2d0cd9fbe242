"""Digits: 1,797 handwritten digits of 8 x 8 pixels, the set of scikit-learn's `load_digits`.

The test part of Alpaydin and Kaynak's optical recognition of handwritten digits (1998), from the file of the installed
package scikit-learn, or of its source package. A row has 64 brightnesses from 0 to 16 and the digit.
"""

import gzip
from collections.abc import Mapping

import numpy as np

from regard.data.images.arrays import ImageSet, LabeledImages, pack
from regard.data.origins.installed import InstalledFile
from regard.data.origins.source import Source

_FILE = "sklearn/datasets/data/digits.csv.gz"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    table = np.array([line.split(",") for line in gzip.decompress(members[_FILE]).decode().split()], np.float64)
    pixels = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train = LabeledImages(pixels, table[:, -1].astype(np.int64))
    return pack(ImageSet(train, LabeledImages.none((1, 8, 8)), tuple("0123456789")))


SOURCE = Source(
    name="digits",
    title="1,797 handwritten digits of 8 x 8 pixels",
    license="Creative Commons Attribution 4.0",
    terms="the UCI repository puts the data of Alpaydin and Kaynak (1998) under CC BY 4.0; scikit-learn is BSD-3",
    file="digits.safetensors",
    sha256="21918edaba89125e50739ccb026121621e551994b6e2a0fb7f411109e5a165b3",
    size=117_197,
    origin=InstalledFile(
        package="scikit-learn",
        version="1.9.1",
        sha256="629cada3e33e2b9bf376cdc7614a47a4140b8aedc1d836579e359736fbd82977",
        members=(_FILE,),
        assemble=_assemble,
        member_sha256="09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
    ),
    labels="images",
)
