"""Tables of edges: a .csv or .tsv file with a header, of the user's own or of a built-in source.

The columns ``source`` and ``target`` name the two nodes. Others are optional: ``kind`` of the edge, ``label`` of the
source node, ``part`` (train, validation or test) of a triple. A row without a target only names a node, or labels it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.records import read_records
from regard.errors import UserError

MOST_NODES = 2**20
PARTS = ("train", "validation", "test")


class EdgeTable(NamedTuple):
    """The content of a table of edges."""

    names: tuple[str, ...]  # of the nodes, in the order of their first appearance
    kinds: tuple[str, ...]  # of the edges, sorted
    edges: NDArray[np.int64]  # [E, 3]: source, target, kind
    labels: dict[int, str]  # of the nodes that have one
    parts: NDArray[np.int64]  # [E]: the number of its part; 0 without the column


def read_edges(path: Path) -> EdgeTable:
    """The table of a file."""
    names: dict[str, int] = {}
    rows: list[tuple[int, int, str, int]] = []
    labels: dict[int, str] = {}
    for line, row in read_records(path):
        source, target, label = (str(row.get(name) or "").strip() for name in ("source", "target", "label"))
        if not source or "target" not in row:
            raise UserError(f"row {line} of {path} has no source or target; the header names both columns")
        node = names.setdefault(source, len(names))
        if label and labels.setdefault(node, label) != label:
            raise UserError(f"row {line} of {path} labels {source} as {label}, an earlier one as {labels[node]}")
        part = str(row.get("part") or "train").strip()
        if part not in PARTS:
            raise UserError(f"row {line} of {path} is for the part {part!r}; choose from {', '.join(PARTS)}")
        if target:
            rows.append((node, names.setdefault(target, len(names)), str(row.get("kind") or ""), PARTS.index(part)))
        if len(names) > MOST_NODES:
            raise UserError(f"{path} has more than {MOST_NODES:,} nodes, the most; give a part of the graph")
    kinds = tuple(sorted({kind for _, _, kind, _ in rows}))
    number = {kind: place for place, kind in enumerate(kinds)}
    edges = np.array([(a, b, number[kind]) for a, b, kind, _ in rows], np.int64).reshape(-1, 3)
    return EdgeTable(tuple(names), kinds, edges, labels, np.array([part for *_, part in rows], np.int64))


def edge_table(edges: list[tuple[str, ...]], labels: dict[str, str] | None = None, *more: str) -> bytes:
    """The file of a source: edges with ``more`` columns, and a row for each label."""
    header = ("source", "target", *more, *(("label",) if labels else ()))
    rows = [*edges, *((node, *("",) * (1 + len(more)), label) for node, label in (labels or {}).items())]
    return "".join("\t".join(row) + "\t" * (len(header) - len(row)) + "\n" for row in (header, *rows)).encode()
