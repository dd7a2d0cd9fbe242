"""Graphs as arrays, what describes a node by its place in the graph, and batches of padded graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import DataConfig, GraphBatch
from regard.data.origins.cache import cache_folder
from regard.data.sources import check_form, find_source
from regard.data.split import check_fractions
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
MOST = 4096  # nodes of a graph whose matrix is decomposed


class Graph(NamedTuple):
    """One graph."""

    nodes: Integers  # [N]: the kind of each node
    edges: Integers  # [E, 3]: a node, another one that it sees, the kind of the edge
    numbers: Floats  # [N, F]: what describes each node

    @property
    def adjacency(self) -> Floats:
        """[N, N]: 1 between neighbors, in both directions; no node is its own neighbor."""
        found = np.zeros((len(self.nodes), len(self.nodes)), np.float32)
        found[self.edges[:, 0], self.edges[:, 1]] = found[self.edges[:, 1], self.edges[:, 0]] = 1
        np.fill_diagonal(found, 0)
        return found


@dataclass(frozen=True)
class GraphDataConfig(DataConfig):
    """Base class: where graphs come from, and the numbers that describe a node by its place in one."""

    form: ClassVar[str]  # of the data; sources name it

    path: str | None = option(
        None, "a .csv or .tsv file of your own instead of the source; docs/graphs.md has the columns"
    )
    source: str = option("", "the graphs to fetch when no path is given; `regard data` lists them")
    validation: float = option(0.1, "the fraction of the examples held out for evaluation")
    test: float = option(0.1, "the fraction held out for a final test, unless the table has parts")
    degree: bool = option(False, "describe a node by the logarithm of its number of neighbors")
    walks: int = option(0, "by the probabilities that a random walk is back after 1, 2 ... so many steps")
    laplacian: int = option(0, "by so many eigenvectors of the normalized Laplacian; their signs change in training")
    batch: int = option(64, "examples per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name, least in (("walks", 0), ("laplacian", 0), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.path is None:
            check_form(self.source, self.form)

    def file(self, cache: Path | None = None) -> Path:
        """The user's file, or that of the source."""
        return Path(self.path).expanduser() if self.path else find_source(self.source).fetch(cache or cache_folder())

    def described(self, graph: Graph) -> Graph:
        """The graph with these numbers before its own: eigenvectors, walks, degree."""
        if not (self.degree or self.walks or self.laplacian):
            return graph
        if len(graph.nodes) > MOST:
            raise UserError(f"a graph of {len(graph.nodes):,} nodes is too large for --data.degree, walks, laplacian")
        near = graph.adjacency
        degree = near.sum(1)
        found = [laplacian(near, self.laplacian), returns(near, self.walks)]
        found += [np.log1p(degree)[:, None]] if self.degree else []
        return graph._replace(numbers=np.concatenate([*found, graph.numbers], 1).astype(np.float32))

    def flipped(self, numbers: Floats, random: NDArray[np.float64]) -> Floats:
        """Numbers [N, F] with random signs [K] of the eigenvectors, which are only defined up to them."""
        signs = np.where(random < 0.5, -1, 1)[: self.laplacian]
        return np.concatenate((numbers[:, : self.laplacian] * signs, numbers[:, self.laplacian :]), 1, dtype=np.float32)


def laplacian(near: Floats, count: int) -> NDArray[np.float64]:
    """The eigenvectors of the smallest eigenvalues of 1 - D^-½ A D^-½, without the first (Dwivedi & Bresson 2021).

    They are scaled to a mean square of 1; a smaller graph has zeros behind its own. The sum of the cubes of each is
    positive, so that the signs do not depend on the order of the nodes; where it is zero, they may.
    """
    root = near.sum(1, dtype=np.float64).clip(1) ** -0.5
    vectors = np.linalg.eigh(np.eye(len(near)) - root[:, None] * near * root)[1][:, 1 : count + 1] if count else near
    found = np.zeros((len(near), count))
    found[:, : vectors.shape[1]] = vectors[:, :count] * len(near) ** 0.5
    found[:, (found**3).sum(0) < 0] *= -1
    return found


def returns(near: Floats, steps: int) -> NDArray[np.float64]:
    """The probability of being back after 1 ... ``steps`` steps of a random walk, [N, steps] (Dwivedi et al. 2022)."""
    walk = near / near.sum(1, keepdims=True, dtype=np.float64).clip(1)
    found, power = np.zeros((len(near), steps)), np.eye(len(near))
    for step in range(steps):
        power = power @ walk
        found[:, step] = power.diagonal()
    return found


def both_ways(edges: Integers) -> Integers:
    """Edges [E, 3] and their reverses of the same kind; each once."""
    return np.unique(np.concatenate((edges, edges[:, [1, 0, 2]])), axis=0).reshape(-1, 3)


def batch_of(graphs: Sequence[Graph], targets: NDArray) -> GraphBatch:
    """The graphs, padded to the largest."""
    import torch  # not at the top: configs are read without torch

    def padded(arrays: Sequence[NDArray], fill: int) -> Tensor:
        longest = max(len(array) for array in arrays)
        found = np.full((len(arrays), longest, *arrays[0].shape[1:]), fill, arrays[0].dtype)
        for row, array in zip(found, arrays, strict=True):
            row[: len(array)] = array
        return torch.from_numpy(found)

    nodes, edges, numbers = zip(*graphs, strict=True)
    return GraphBatch(padded(numbers, 0), torch.from_numpy(targets), padded(nodes, -1), padded(edges, -1))


def fingerprint(*parts: object) -> str:
    """A SHA-256 of arrays, and of anything with a complete `repr`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()
