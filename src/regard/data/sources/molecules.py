"""Molecules: 1,584,663 drug-like molecules as SMILES, one on each line, 58 MB.

The training part of the benchmark MOSES (Polykovskiy et al. 2020), from the wheel `molsets` 0.3.1.
"""

import gzip
from collections.abc import Mapping

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source

_FILE = "moses/dataset/data/train.csv.gz"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    return gzip.decompress(members[_FILE]).partition(b"\n")[2]  # without the header


SOURCE = Source(
    name="molecules",
    title="1,584,663 drug-like molecules as SMILES",
    license="MIT",
    terms="LICENSE of the package is MIT; the molecules are a selection from the ZINC database's Clean Leads",
    file="molecules.txt",
    sha256="4301e7f6118839465012eb93510328681ef4b7b24642e8748c4ad40971f4a304",
    size=58_408_787,
    origin=Wheel(
        package="molsets",
        version="0.3.1",
        sha256="7f4450e3ebecebe79c3a2a55950c93daddee071120daf64a163d03481e811d34",
        members=(_FILE,),
        assemble=_assemble,
    ),
)
