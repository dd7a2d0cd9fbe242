"""A data source: sums such as "12+7=19", made on this machine.

regard data --with data_source.py
regard train --with data_source.py --data.source sums
"""

import hashlib
from pathlib import Path

from regard.data import Origin, Source, SourceFile

TEXT = "".join(f"{a}+{b}={a + b}\n" for a in range(100) for b in range(100)).encode()


class Generated(Origin):
    """An origin that writes the file instead of downloading it."""

    def __str__(self) -> str:
        return "this machine"

    def fetch(self, folder: Path) -> None:
        (folder / "sums.txt").write_bytes(TEXT)


SOURCE = Source(
    name="sums",
    title="Sums of two numbers below 100",
    license="public domain",
    terms="facts of arithmetic",
    files=(SourceFile("sums.txt", hashlib.sha256(TEXT).hexdigest(), len(TEXT)),),
    origins=(Generated(),),
)
