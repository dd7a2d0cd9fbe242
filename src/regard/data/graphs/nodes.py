"""Classes of the nodes of one graph: all nodes are seen in training, the classes of some are held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import IGNORE_INDEX, Example, GraphBatch
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.graphs.edge_table import EdgeTable, read_edges
from regard.data.graphs.graph import Graph, GraphDataConfig, batch_of, both_ways, fingerprint
from regard.data.split import divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig

SHOWN = 60  # nodes of the part of a large graph that `regard look` shows


@dataclass(frozen=True)
class NodesConfig(GraphDataConfig, kind="nodes"):
    """Classes of the nodes of a graph."""

    form = "nodes"
    source: str = option("karate", "the graph to fetch when no path is given; `regard data` lists them")
    identity: bool = option(True, "a learned vector for each node; false: a node is what its place in the graph is")
    random_signs: bool = option(True, "the signs of eigenvectors change in training; false: they are kept")
    directed: bool = option(False, "a node sees the targets of its edges only; default: the sources as well")
    held: tuple[str, ...] = option((), "the names of the nodes held out for the test, instead of a fraction")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> NodeData:
        """Read the graph and divide its labelled nodes; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        table = self.read(cache)
        graph, labels = self.graph(table, table), tuple(sorted(set(table.labels.values())))
        if len(labels) < 2:
            raise UserError(f"{self.path or self.source} labels nodes with {len(labels)} classes; give at least two")
        if unknown := set(self.held) - set(table.names):
            raise UserError(f"--data.held names {min(unknown)}, which is no node of {self.path or self.source}")
        classes = np.full(len(table.names), IGNORE_INDEX)
        classes[list(table.labels)] = [labels.index(label) for label in table.labels.values()]
        held = np.array([node for node in table.labels if table.names[node] in self.held], np.int64)
        rest = np.array([node for node in table.labels if table.names[node] not in self.held], np.int64)
        names = [table.names[node] for node in rest]
        train, validation, test = (
            rest[np.array(part, np.int64)] for part in divide(names, self.validation, 0.0 if self.held else self.test)
        )
        if not len(train):
            raise UserError("no labelled node is left for training; lower --data.validation and --data.test")
        parts = {"train": train, "validation": validation, "test": held if self.held else test}
        return NodeData(self, graph, classes, parts, labels, table)

    def read(self, cache: Path | None = None) -> EdgeTable:
        """The table of the graph."""
        return read_edges(self.file(cache))

    def graph(self, table: EdgeTable, trained: EdgeTable) -> Graph:
        """The graph of a table; its nodes and kinds of edges are numbered as in the one of the training."""
        number = {name: node for node, name in enumerate(trained.names)}
        kinds = {kind: place for place, kind in enumerate(trained.kinds)}
        strange = [name for name in table.names if name not in number] if self.identity else []
        strange += [f"{kind!r} (a kind of edge)" for kind in table.kinds if kind not in kinds]
        if strange:
            raise UserError(f"{strange[0]} is not in the graph of the training; train with --data.identity false")
        nodes = [number[name] if self.identity else 0 for name in table.names]
        edges = table.edges.copy()
        edges[:, 2] = np.array([kinds[kind] for kind in table.kinds], np.int64)[edges[:, 2]]
        edges = edges if self.directed else both_ways(edges)
        return self.described(Graph(np.array(nodes, np.int64), edges, np.zeros((len(nodes), 0), np.float32)))

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        """The graph of a file, of which every node is asked for."""
        table = read_edges(path)
        graph = self.graph(table, self.read())
        batch = batch_of([graph], np.full((1, len(graph.nodes)), IGNORE_INDEX))
        return [Example(str(path), batch, parts=table.names)]


class NodeData(ExampleData[GraphBatch]):
    """A graph whose labelled nodes are the examples. A batch is the whole graph, of which some targets count."""

    sha256: str

    def __init__(
        self,
        config: NodesConfig,
        graph: Graph,
        classes: NDArray[np.int64],
        parts: dict[str, Numbers],
        labels: tuple[str, ...],
        table: EdgeTable,
    ) -> None:
        """``classes`` [N]: IGNORE_INDEX where it is unknown; ``parts``: the nodes of each."""
        super().__init__(
            (len(parts["train"]), len(parts["validation"]), len(parts["test"])), config.path or config.source
        )
        self.config, self.graph, self.classes, self.parts, self.labels = config, graph, classes, parts, labels
        self.names, self.draws = table.names, config.laplacian if config.random_signs else 0
        self.shape = (len(graph.nodes), int(graph.nodes.max()) + 1, max(1, len(table.kinds)), graph.numbers.shape[1])
        self.sha256 = fingerprint(labels, table.names, *graph, classes, *parts.values())

    @property
    def frequencies(self) -> Numbers:
        """How often each class occurs in the training part, [classes]."""
        return np.bincount(self.classes[self.parts["train"]], minlength=len(self.labels))

    def train_batch(self, numbers: Numbers, random: Uniform) -> GraphBatch:
        graph = self.graph
        if self.draws:  # the graph is one for all nodes, and so are its signs
            graph = graph._replace(numbers=self.config.flipped(graph.numbers, random[0]))
        return self._batch(graph, self.parts["train"][numbers])

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> GraphBatch:
        return self._batch(self.graph, self.parts[part][numbers if counts else numbers[:0]])

    def held_out(self, count: int) -> list[Example]:
        part: Part = "test" if self.test_count else "validation"
        nodes = self.parts[part][:count]
        return (
            [Example(f"the {part} part of {self.name}", self._batch(self.graph, nodes), parts=self.names)]
            if len(nodes)
            else []
        )

    def shown(self) -> Example | None:
        """The first held-out node and, of a large graph, those nearest to it."""
        if len(self.names) <= SHOWN or not (held := self.held_out(1)):
            return next(iter(self.held_out(1)), None)
        edges, node = self.graph.edges, int((held[0].batch.targets[0] >= 0).nonzero()[0])
        near = [node]
        for one in near:  # grows: breadth first
            near += [k for k in edges[edges[:, 0] == one, 1].tolist() if k not in near]
            if len(near) >= SHOWN:
                break
        near, number = near[:SHOWN], np.full(len(self.names), -1)
        number[near] = np.arange(len(near))
        inside = edges[(number[edges[:, :2]] >= 0).all(1)]
        part = Graph(
            self.graph.nodes[near], np.concatenate((number[inside[:, :2]], inside[:, 2:]), 1), self.graph.numbers[near]
        )
        names = tuple(self.names[one] for one in near)
        return Example(f"nodes near {names[0]}", batch_of([part], np.full((1, len(near)), IGNORE_INDEX)), parts=names)

    def _batch(self, graph: Graph, nodes: Numbers) -> GraphBatch:
        targets = np.full((1, len(self.classes)), IGNORE_INDEX)
        targets[0, nodes] = self.classes[nodes]
        return batch_of([graph], targets)
