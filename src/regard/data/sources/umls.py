"""UMLS: 6,529 triples between 135 terms of medicine in 46 relations.

From the Python source package `pykeen` 1.11.1, with its division into parts.
"""

from collections.abc import Mapping
from functools import partial

from regard.data.graphs.edge_table import PARTS, edge_table
from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source


def triples(members: Mapping[str, bytes], folder: str) -> bytes:
    """The table of three files of the package, with a triple on each line: head, relation, tail."""
    rows = []
    for part, file in zip(PARTS, ("train", "valid", "test"), strict=True):
        for line in members[f"{folder}/{file}.txt"].decode().splitlines():
            head, relation, tail = line.split("\t")
            rows.append((head, tail, relation, part))
    return edge_table(rows, None, "kind", "part")


def pykeen(name: str) -> Sdist:
    """The package, of which the files of one data set are read."""
    folder = f"src/pykeen/datasets/{name}"
    return Sdist(
        package="pykeen",
        version="1.11.1",
        sha256="702cb807c354a0d2fce0f0593db46e1fe15fba2a37e92bbb18cd1b9d0a85fe13",
        members=tuple(f"{folder}/{part}.txt" for part in ("train", "valid", "test")),
        assemble=partial(triples, folder=folder),
    )


SOURCE = Source(
    name="umls",
    title="UMLS: 6,529 triples between 135 medical terms in 46 relations",
    license="MIT",
    terms="LICENSE of the package is MIT and does not mention the data; it names the collection KGDatasets as their "
    "origin; the semantic network of the US National Library of Medicine is public",
    file="umls.tsv",
    sha256="2f7a9e2aec916e942cc17447a40c80ad5da968c56eeca37d08edc6836ca36800",
    size=367_741,
    origin=pykeen("umls"),
    labels="links",
)
