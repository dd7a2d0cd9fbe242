"""Zachary's karate club: 34 members, 78 friendships, and the club that each joined after the split (Zachary 1977).

From the file of the installed package networkx, which torch requires, or of its source package; it is read as text,
never imported.
"""

import re
from collections.abc import Mapping

from regard.data.graphs.edge_table import edge_table
from regard.data.origins.installed import InstalledFile
from regard.data.origins.source import Source

FILE = "networkx/generators/social.py"


def networkx_file(assemble) -> InstalledFile:
    """The file of networkx that has its social networks."""
    return InstalledFile(
        package="networkx",
        version="3.6.1",
        sha256="26b7c357accc0c8cde558ad486283728b65b6a95d85ee1cd66bafab4c8168509",
        members=(FILE,),
        assemble=assemble,
        member_sha256="6ebcc049ca40c5619113113d27b16e889dbd419c419bc6d7a518027342281cfd",
    )


def _assemble(members: Mapping[str, bytes]) -> bytes:
    text = members[FILE].decode()
    club = re.search(r"club1 = \{([\d, ]+)\}", text)
    matrix = re.search(r'zacharydat = """\\\n([\d\s]+)"""', text)
    assert club is not None
    assert matrix is not None
    first = {int(member) for member in club[1].split(",")}
    rows = [line.split() for line in matrix[1].splitlines()]
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(rows) for j, n in enumerate(row) if n != "0"}
    edges = [(str(i + 1), str(j + 1)) for i, j in sorted(pairs)]  # one entry of the matrix is not symmetric
    labels = {str(i + 1): "Mr. Hi" if i in first else "Officer" for i in range(len(rows))}
    return edge_table(edges, labels)


SOURCE = Source(
    name="karate",
    title="Zachary's karate club: 34 members, 78 friendships, 2 clubs",
    license="BSD 3-Clause",
    terms="LICENSE.txt of networkx covers its files; the data are table 3 of Zachary (1977), which its file cites",
    file="karate.tsv",
    sha256="a1c6a666b46291104d7e4ace5380d8539152a206eb06bcaa65892979c2e4c9c3",
    size=887,
    origin=networkx_file(_assemble),
    labels="nodes",
)
