"""What a check gets to see of a run: its experiment, model and data, the newest batches, times and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data import Data, PairBatch, TextBatch
from regard.doctor.history import History
from regard.models.base import Model
from regard.tasks import Term
from regard.train import Experiment

Batch = TextBatch | PairBatch
#: Batches before the newest one that it is compared with: at most, and at least even if they are slow.
COMPARED, AT_LEAST = 48, 3


@dataclass
class TrainingRun:
    """A run during training, or afterwards; then ``model`` and ``data`` are set when the checkpoint is loaded."""

    experiment: Experiment
    history: History = field(default_factory=History)
    model: Model | None = None  # None: not loaded, or sharded
    data: Data | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    get_batch: Callable[[int], Batch] | None = None  # a training batch by its number
    terms: Callable[[Model, Batch], dict[str, Term]] | None = None  # the task's, in the run's number format
    position: int = 0  # micro-batches consumed

    def batch(self, number: int) -> Batch:
        assert self.get_batch is not None
        return self.get_batch(number)

    @property
    def vocabulary(self) -> int:
        return self.experiment.model.vocabulary

    def in_range(self, tokens: Tensor, lowest: int = 0) -> bool:
        """All tokens are in the vocabulary."""
        least, most = (int(edge) for edge in tokens.aminmax()) if tokens.numel() else (0, 0)
        return least >= lowest and most < self.vocabulary

    def usable(self, batch: Batch) -> bool:
        """The model can run on this batch: all its tokens are in the vocabulary."""
        sources = [batch.source] if isinstance(batch, PairBatch) else []
        return all(map(self.in_range, [batch.inputs, *sources])) and self.in_range(batch.targets, -1)

    def recent_batches(self, patience: float, reading: float) -> RecentBatches:
        """The newest batches; fewer of them if that takes longer than ``patience`` seconds."""
        batches, times, began = {}, [], time.perf_counter()
        newest = max(self.position - 1, 0)
        for number in range(newest, max(newest - COMPARED - 1, -1), -1):
            started = time.perf_counter()
            batches[number] = self.batch(number)
            times.append(time.perf_counter() - started)
            if len(batches) >= AT_LEAST and time.perf_counter() - began > patience:
                break
        usual = sorted(times)[:-1] or times  # without the slowest, which may be an outlier
        return RecentBatches(batches, statistics.mean(usual), reading)


class RecentBatches(NamedTuple):
    """The newest training batches by number, the newest first."""

    batches: dict[int, Batch]
    seconds: float = 0.0  # to make one
    reading: float = 0.0  # seconds that a check may spend on reading the data further

    @property
    def newest(self) -> Batch:
        return next(iter(self.batches.values()))


class Resources(NamedTuple):
    """Times and memory of the run."""

    step_seconds: float  # median of the last steps
    batch_seconds: float  # to make one batch
    recent: Sequence[tuple[float, range]]  # seconds and batch numbers of the last steps
    memory: int  # peak, in bytes
    memory_before: int  # before the first step
    memory_limit: int | None  # that the process may use
