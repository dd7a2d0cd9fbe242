"""A tiny experiment that trains in a blink, and data whose big batch is exactly its small ones in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.config import to_toml
from regard.data import Data, DataConfig, TextBatch, TextConfig
from regard.models import GPTConfig
from regard.runs import Checkpoint, Run
from regard.train import AdamWConfig, Experiment, TrainConfig, train

MODEL = GPTConfig(context=8, layers=2, heads=2, width=16, dropout=0.2, zero_init=False)
TRAIN = TrainConfig(steps=8, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=4, save_every=4, device="cpu")


def write_text(folder: Path) -> Path:
    """A text of a few hundred characters, the same every time."""
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 12, encoding="utf-8")
    return path


def experiment(text: Path, model: dict[str, Any] | None = None, **training: Any) -> Experiment:
    """The tiny experiment on `text`, changed as wished."""
    data = TextConfig(path=str(text), batch=4)
    return Experiment(replace(MODEL, **(model or {})), data, train=replace(TRAIN, **training), seed=7)


def start(folder: Path, experiment: Experiment, name: str = "run") -> Run:
    """A fresh run folder."""
    return Run.create(folder, name, to_toml(experiment), {})


def weights(run: Run) -> dict[str, torch.Tensor]:
    """The newest checkpoint's weights."""
    return newest(run).model()


def newest(run: Run) -> Checkpoint:
    """The newest checkpoint."""
    found = run.latest()
    assert found is not None
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether every bit agrees."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def run_whole(folder: Path, experiment: Experiment, name: str = "whole") -> Run:
    """Train without a break."""
    run = start(folder, experiment, name)
    train(experiment, run)
    return run


@dataclass(frozen=True)
class RowsConfig(DataConfig, kind="test-rows"):
    """Rows of one fixed table, with different numbers of targets that count."""

    batch: int = 4

    def build(self, context: int, cache: Path | None = None) -> Rows:
        return Rows(context)


class Rows(Data):
    """Batch number `step` of `size` rows per rank is the next slice of the table."""

    vocabulary: int = 13

    def __init__(self, context: int):
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(self.vocabulary, (64, context + 1), generator=generator)
        self.lengths = torch.randint(1, context + 1, (64,), generator=generator)

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        first = (step * world + rank) * size
        return self._rows(torch.arange(first, first + size) % 64)

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        for first in range(0, 16, size * world):
            begin = first + rank * size
            yield self._rows(torch.arange(begin, begin + size))

    def _rows(self, rows: torch.Tensor) -> TextBatch:
        tokens, lengths = self.tokens[rows], self.lengths[rows]
        counted = torch.arange(tokens.shape[1] - 1) < lengths[:, None]
        return TextBatch(tokens[:, :-1], torch.where(counted, tokens[:, 1:], -1))
