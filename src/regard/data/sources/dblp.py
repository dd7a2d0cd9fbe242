"""DBLP: citations between 17,716 papers on computer science, of 4 classes.

From the same package as `pubmed`, which numbers the classes.
"""

from regard.data.origins.source import Source
from regard.data.sources.pubmed import ogre

SOURCE = Source(
    name="dblp",
    title="DBLP: citations between 17,716 papers of 4 classes",
    license="MIT",
    terms="LICENSE of the package is MIT and does not mention the data, which are from the public records of DBLP",
    file="dblp.tsv",
    sha256="4a1eadf5a6f52f58a647cc955fab8c6f6ba7a5398642374c3bccf1a1b172f4ba",
    size=734_103,
    origin=ogre("src/OGRE/datasets/DBLP.txt", "src/OGRE/labels/dblp_tags.txt"),
    labels="nodes",
)
