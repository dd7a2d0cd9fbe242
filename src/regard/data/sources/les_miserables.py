"""Les Misérables: which of 77 characters appear together in a chapter of the novel, 254 pairs (Knuth 1993).

From the same file of networkx as `karate`. A kind of edge is how often they do: once, or more often.
"""

import re
from collections.abc import Mapping

from regard.data.graphs.edge_table import edge_table
from regard.data.origins.source import Source
from regard.data.sources.karate import FILE, networkx_file


def _assemble(members: Mapping[str, bytes]) -> bytes:
    found = re.findall(r'G\.add_edge\("(\w+)", "(\w+)", weight=(\d+)\)', members[FILE].decode())
    return edge_table([(one, other, "once" if times == "1" else "more") for one, other, times in found], None, "kind")


SOURCE = Source(
    name="les-miserables",
    title="Les Misérables: 77 characters, 254 pairs that appear together",
    license="BSD 3-Clause",
    terms="LICENSE.txt of networkx covers its files; the data are those of Knuth's Stanford GraphBase (1993)",
    file="les_miserables.tsv",
    sha256="2a466890d3fd4ec0cb69e65619c4cae5e0bf293d407c2b4591dd8f060cdda2d9",
    size=6_024,
    origin=networkx_file(_assemble),
    labels="links",
)
