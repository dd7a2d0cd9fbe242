"""A data source: sums such as "12+7=19", made on this machine.

regard data --with data_source.py
regard train --with data_source.py --data.source sums
"""

import hashlib
from pathlib import Path

from regard.data import Origin, Source

TEXT = "".join(f"{a}+{b}={a + b}\n" for a in range(100) for b in range(100)).encode()


class Generated(Origin):
    """An origin that writes the file instead of downloading it."""

    def __str__(self) -> str:
        return "this machine"

    def fetch(self, path: Path) -> None:
        path.write_bytes(TEXT)


SOURCE = Source(
    name="sums",
    title="Sums of two numbers below 100",
    license="public domain",
    terms="facts of arithmetic",
    file="sums.txt",
    sha256=hashlib.sha256(TEXT).hexdigest(),
    size=len(TEXT),
    origin=Generated(),
)
