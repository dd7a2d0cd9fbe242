"""Whole graphs with a value or a class each: molecules, written as SMILES."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import IGNORE_INDEX, Example, GraphBatch
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.graphs.edge_table import PARTS
from regard.data.graphs.graph import Graph, GraphDataConfig, batch_of, fingerprint
from regard.data.graphs.smiles import KINDS, NUMBERS, read_smiles
from regard.data.records import read_records, read_text
from regard.data.split import divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig

SCALES = np.array([4, 3, 4, 1, 1, 1], np.float32)  # of the numbers of an atom: all are about 1


@dataclass(frozen=True)
class GraphsConfig(GraphDataConfig, kind="graphs"):
    """Molecules and a value, or a class, of each."""

    form = "graphs"
    source: str = option("solubility", "the molecules to fetch when no path is given; `regard data` lists them")
    target: str = option("solubility", "the column with what is to be predicted")
    classes: bool = option(False, "the column has classes; default: numbers")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> GraphData:
        """Read and divide the molecules; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        path = self.file(cache)
        graphs, texts, targets, parts = [], [], [], []
        for line, row in read_records(path):
            texts.append(str(row.get("smiles") or "").strip())
            graphs.append(self.molecule(texts[-1], f"row {line} of {path}: "))
            targets.append(str(row.get(self.target) if row.get(self.target) is not None else "").strip())
            parts.append(str(row.get("part") or "train"))
            if parts[-1] not in PARTS or (targets[-1] == "" and self.target not in row):
                raise UserError(f"row {line} of {path} needs a column {self.target}, and a part of {', '.join(PARTS)}")
        labels = tuple(sorted({target for target in targets if target})) if self.classes else ()
        values = np.array([self._value(target, labels, path) for target in targets])[:, None]
        given, train = np.array([PARTS.index(part) for part in parts]), np.flatnonzero(np.array(parts) == "train")
        division = divide(
            [texts[n] for n in train], *(0.0 if (given == n).any() else share for n, share in self._shares)
        )
        chosen = [train[np.array(part, np.int64)] for part in division]
        held = [np.concatenate((chosen[n], np.flatnonzero(given == n))) for n in (1, 2)]
        if not len(chosen[0]):
            raise UserError("no molecule is left for training; lower --data.validation and --data.test")
        return GraphData(self, graphs, values, [chosen[0], *held], labels, tuple(texts))

    def molecule(self, smiles: str, where: str = "") -> Graph:
        """The described graph of a SMILES."""
        try:
            graph = read_smiles(smiles)
        except UserError as error:
            raise UserError(f"{where}{error}") from None
        return self.described(graph._replace(numbers=graph.numbers / SCALES))

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        """The molecules of a table, of a file with a SMILES on each line, or one SMILES itself."""
        if path.suffix in (".csv", ".tsv", ".jsonl"):
            texts = [str(row.get("smiles") or "") for _, row in read_records(path)]
        elif os.path.isfile(path):  # False, too, for what no path can be
            texts = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
        else:
            texts = [str(path)]
        targets = np.full((1, 1), IGNORE_INDEX) if self.classes else np.full((1, 1), np.nan, np.float32)
        return [Example(smiles, batch_of([self.molecule(smiles)], targets)) for smiles in texts]

    @property
    def _shares(self) -> tuple[tuple[int, float], tuple[int, float]]:
        return (1, self.validation), (2, self.test)

    def _value(self, target: str, labels: tuple[str, ...], path: Path) -> float:
        """The number of a class, or the value; IGNORE_INDEX or NaN if it is unknown."""
        if self.classes:
            return labels.index(target) if target else IGNORE_INDEX
        try:
            return float(target or "nan")
        except ValueError:
            raise UserError(f"{target!r} in {path} is no number; set --data.classes true for classes") from None


class GraphData(ExampleData[GraphBatch]):
    """Graphs with a target each."""

    sha256: str

    def __init__(
        self,
        config: GraphsConfig,
        graphs: list[Graph],
        targets: NDArray[np.float64],
        parts: list[Numbers],
        labels: tuple[str, ...],
        names: tuple[str, ...],
    ) -> None:
        """``targets`` [N, 1]; ``parts``: the graphs for training, validation and test."""
        super().__init__((len(parts[0]), len(parts[1]), len(parts[2])), config.path or config.source)
        self.config, self.graphs, self.labels, self.names, self.draws = config, graphs, labels, names, config.laplacian
        self.targets = targets.astype(np.int64 if labels else np.float32)
        self.parts = dict(zip(PARTS, parts, strict=True))
        self.values = None if labels else targets[parts[0]].astype(np.float32)
        width = NUMBERS + config.laplacian + config.walks + config.degree
        self.shape = (max(len(graph.nodes) for graph in graphs), KINDS, 4, width)
        self.sha256 = fingerprint(labels, names, self.targets, *parts, *(array for graph in graphs for array in graph))

    @property
    def frequencies(self) -> Numbers:
        """How often each class occurs in the training part, [classes]."""
        return np.bincount(self.targets[self.parts["train"], 0], minlength=len(self.labels))

    def train_batch(self, numbers: Numbers, random: Uniform) -> GraphBatch:
        chosen = self.parts["train"][numbers]
        graphs = [self.graphs[n] for n in chosen]
        if self.draws:
            pairs = zip(graphs, random, strict=True)
            graphs = [one._replace(numbers=self.config.flipped(one.numbers, signs)) for one, signs in pairs]
        return batch_of(graphs, self.targets[chosen])

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> GraphBatch:
        chosen = self.parts[part][numbers]
        nothing = np.full((len(chosen), 1), IGNORE_INDEX if self.labels else np.nan, self.targets.dtype)
        return batch_of([self.graphs[n] for n in chosen], self.targets[chosen] if counts else nothing)

    def held_out(self, count: int) -> list[Example]:
        part: Part = "test" if self.test_count else "validation"
        found = []
        for number, one in enumerate(self.parts[part][:count]):
            target = self.targets[one, 0]
            given = self.labels[int(target)] if self.labels else f"{target:g}"
            found.append(Example(self.names[one], self.part_batch(part, np.array([number])), given))
        return found
