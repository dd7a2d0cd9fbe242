"""PubMed: citations between 19,717 papers about diabetes, of 3 classes (Sen et al. 2008).

From the Python source package `OGRE-embed` 0.0.3, which has the citations and the classes, but not the words of the
papers. It numbers the classes and does not name them.
"""

from collections.abc import Callable, Mapping
from functools import partial

from regard.data.graphs.edge_table import edge_table
from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source

Assemble = Callable[[Mapping[str, bytes]], bytes]


def citations(members: Mapping[str, bytes], edges: str, labels: str) -> bytes:
    """The table of a graph of the package: lines `a,b` of papers, and lines with a paper and its class."""
    pairs = [line.split(",") for line in members[edges].decode().split()]
    classes = dict(line.split() for line in members[labels].decode().splitlines() if line.strip())
    return edge_table([(a, b) for a, b in pairs], classes)


def ogre(edges: str, labels: str) -> Sdist:
    """The package, of which these two files are read."""
    return Sdist(
        package="OGRE-embed",
        version="0.0.3",
        sha256="36bf53d5b51caad389d08a5007a109f72074a1e0a6900b9ba4296eeeb1e5fadc",
        members=(edges, labels),
        assemble=partial(citations, edges=edges, labels=labels),
    )


SOURCE = Source(
    name="pubmed",
    title="PubMed: citations between 19,717 papers of 3 classes",
    license="MIT",
    terms="LICENSE of the package is MIT and does not mention the data, which Sen et al. (2008) collected from the "
    "public records of PubMed",
    file="pubmed.tsv",
    sha256="5efb13e9f65daa9570de075e413a5b67f7449a65e10d1b0382f89c3d380c5ef4",
    size=1_032_880,
    origin=ogre("src/OGRE/datasets/Pubmed.txt", "src/OGRE/labels/pubmed2_tags.txt"),
    labels="nodes",
)
