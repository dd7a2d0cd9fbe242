"""Triples (head, relation, tail) of a knowledge graph: which node completes one is learned from the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.config import option
from regard.data.base import IGNORE_INDEX, Example, GraphBatch
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.graphs.edge_table import PARTS, EdgeTable, read_edges
from regard.data.graphs.graph import Graph, GraphDataConfig, Integers, batch_of, fingerprint
from regard.data.records import read_records
from regard.data.split import divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig


@dataclass(frozen=True)
class LinksConfig(GraphDataConfig, kind="links"):
    """Links of a graph that are to be found."""

    form = "links"
    source: str = option("umls", "the triples to fetch when no path is given; `regard data` lists them")
    batch: int = option(256, "questions per micro-batch: a triple is two, for its tail and for its head")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> LinkData:
        """Read and divide the triples; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        table = self.read(cache)
        if table.parts.any():
            parts = [table.edges[table.parts == number] for number in range(len(PARTS))]
        else:
            names = ["\t".join(map(str, edge)) for edge in table.edges.tolist()]
            parts = [table.edges[np.array(part, np.int64)] for part in divide(names, self.validation, self.test)]
        if not len(parts[0]):
            raise UserError("no triple is left for training; lower --data.validation and --data.test")
        return LinkData(self, table, dict(zip(PARTS, parts, strict=True)))

    def read(self, cache: Path | None = None) -> EdgeTable:
        """The table of the triples."""
        return read_edges(self.file(cache))

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        """The questions of a table with the columns source and kind: which node is the target?"""
        data, found = self.build(0), []
        names, kinds = list(data.names), list(data.kinds)
        for line, row in read_records(path):
            head, kind = str(row.get("source") or ""), str(row.get("kind") or "")
            if head not in names or kind not in kinds:
                raise UserError(f"row {line} of {path} asks for {head!r}, {kind!r}, which is not in the training graph")
            question = np.array([[names.index(head), kinds.index(kind), 0]])
            found.append(Example(f"{head} {kind}", data.asked(data.edges, question, 0), parts=data.names))
        return found


class LinkData(ExampleData[GraphBatch]):
    """Questions (node, relation) about a graph. Number 2i asks for the tail of triple i, 2i + 1 for its head.

    The edges of the graph are the triples of the training part, with a reverse of each as another relation.
    Those that a training batch asks about are removed from it: they would be the answer.
    """

    sha256: str

    def __init__(self, config: LinksConfig, table: EdgeTable, parts: dict[str, Integers]) -> None:
        counts = [2 * len(parts[part]) for part in PARTS]
        super().__init__((counts[0], counts[1], counts[2]), config.path or config.source)
        self.names, self.kinds, self.draws, self.config = table.names, table.kinds, config.laplacian, config
        relations, nodes = len(table.kinds), len(table.names)
        self.parts = {
            part: np.stack((edges, _reverse(edges, relations)), 1).reshape(-1, 3) for part, edges in parts.items()
        }
        self.edges = self.parts["train"]
        graph = config.described(Graph(np.arange(nodes), self.edges, np.zeros((nodes, 0), np.float32)))
        self.numbers = graph.numbers
        self.shape = (nodes, nodes, 2 * relations, self.numbers.shape[1])
        self.sha256 = fingerprint(table.names, table.kinds, *self.parts.values(), self.numbers)
        self._answers: dict[tuple[int, int], list[int]] = {}
        for head, tail, kind in np.concatenate(list(self.parts.values())).tolist():
            self._answers.setdefault((head, kind), []).append(tail)

    def train_batch(self, numbers: Numbers, random: Uniform) -> GraphBatch:
        asked = np.isin(np.arange(len(self.edges)) // 2, numbers // 2)
        described = self.config.flipped(self.numbers, random[0]) if self.draws else self.numbers
        return self.asked(self.edges[~asked], self.edges[numbers], described=described, known=False)

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> GraphBatch:
        return self.asked(self.edges, self.parts[part][numbers], len(numbers) if counts else 0)

    def asked(
        self,
        edges: Integers,
        questions: Integers,
        count: int | None = None,
        *,
        described: np.ndarray | None = None,
        known: bool = True,
    ) -> GraphBatch:
        """A batch of questions [Q, 3] (node, answer, relation), of which the first ``count`` count (default: all)."""
        import torch  # not at the top: configs are read without torch

        targets = questions[None, :, 1].copy()
        targets[:, len(questions) if count is None else count :] = IGNORE_INDEX
        numbers = self.numbers if described is None else described
        batch = batch_of([Graph(np.arange(len(self.names)), edges, numbers)], targets)
        batch = batch._replace(queries=torch.from_numpy(questions[None][:, :, [0, 2]]))
        if not known:
            return batch
        others = np.zeros((1, len(questions), len(self.names)), bool)
        for place, (head, tail, kind) in enumerate(questions.tolist()):
            others[0, place, self._answers.get((head, kind), [])] = True
            others[0, place, tail] = False
        return batch._replace(known=torch.from_numpy(others))

    def held_out(self, count: int) -> list[Example]:
        part: Part = "test" if self.test_count else "validation"
        numbers = np.arange(0, len(self.parts[part]), 2)[:count]
        return [
            Example(
                f"{self.names[head]} {self.kinds[kind]}",
                self.part_batch(part, numbers[n : n + 1]),
                self.names[tail],
                self.names,
            )
            for n, (head, tail, kind) in enumerate(self.parts[part][numbers].tolist())
        ]


def _reverse(edges: Integers, relations: int) -> Integers:
    return edges[:, [1, 0, 2]] + np.array([0, 0, relations])
