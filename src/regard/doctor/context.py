"""What a check gets to see of a run: experiment, model, data, numbers so far, newest batches, times and memory."""

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config import dump
from regard.config.notation import PlainTable
from regard.data import Data, TextData
from regard.doctor.examples import Examples
from regard.doctor.replay import Replay
from regard.errors import UserError
from regard.models.base import Model
from regard.pages.numbers import short
from regard.prove.batches import Batch, out_of_range
from regard.runs import Checkpoint
from regard.tasks import LanguageConfig, Task, Term
from regard.train import Experiment, Optimizer

Record = Mapping[str, Any]  # a record of metrics.jsonl
LOGGED = ("loss", "lr", "grad_norm", "validation_loss")
SAMPLED = 48  # batches whose tokens are counted
PAIRS = 4  # sampled neighbors per possible pair, at least, for their entropy
RECENT = 10  # steps over which medians are taken
#: Batches before the newest one that it is compared with: at most, and at least even if they are slow.
COMPARED, AT_LEAST = 48, 3


class StepNumbers(NamedTuple):
    """The numbers of one finite step."""

    step: int
    loss: float
    rate: float
    norm: float  # of the gradient, before clipping


class History:
    """Numbers of a run, added step by step or read from metrics.jsonl."""

    def __init__(self) -> None:
        self.steps: list[StepNumbers] = []
        self.validation: list[tuple[int, float]] = []  # (step, loss)
        self.updates: list[float] = []  # median of |update| / |weight| over the matrices, where it was measured

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]

    @property
    def rates(self) -> list[float]:
        return [step.rate for step in self.steps]

    @property
    def norms(self) -> list[float]:
        return [step.norm for step in self.steps]

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self.steps[-1].step if self.steps else 0

    def add(self, step: int, loss: float, rate: float, norm: float) -> None:
        """Add one step; steps that are not finite are left out."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.steps.append(StepNumbers(step, loss, rate, norm))

    def read(self, records: Iterable[Record]) -> None:
        """Add records of metrics.jsonl, where a number that is not finite is a string."""
        for record in records:
            loss, rate, norm, validation = (_number(record.get(name)) for name in LOGGED)
            self.add(record["step"], loss, rate, norm)
            if math.isfinite(validation):
                self.validation.append((record["step"], validation))

    def norm(self) -> float:
        """The median of the last gradient norms."""
        return statistics.median(self.norms[-2 * RECENT :]) if self.steps else 0.0


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan


class RecentBatches(NamedTuple):
    """The newest training batches by number, the newest first."""

    batches: dict[int, Batch]
    seconds: float = 0.0  # to make one
    reading: float = 0.0  # tokens of the data that a check may have read by now

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


@dataclass
class TrainingRun:
    """A run during training, or afterwards; then ``model`` and ``data`` are set when the checkpoint is loaded."""

    experiment: Experiment
    history: History = field(default_factory=History)
    model: Model | None = None  # None: not loaded, or sharded
    data: Data | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32  # of matrix products
    lanes: int = 1  # of this process
    position: int = 0  # micro-batches consumed, over these lanes
    optimizer: Optimizer | None = None  # during training
    replay: Replay | None = None  # during training, if there is memory for it
    tokens: int = 0  # trained on
    wrong_mode: bool = False  # the last evaluation ran with dropout, or the like, as in training
    resumed: Checkpoint | None = None  # that this session continues from
    _settings: tuple[Experiment, PlainTable] | None = None

    def batch(self, number: int) -> Batch:
        """A training batch by its number, which counts the micro-batches of this process."""
        assert self.data is not None
        position, lane = divmod(number, self.lanes)
        return self.experiment.batch(self.data, position, lane, self.experiment.train.lanes or 1)

    @property
    def settings(self) -> PlainTable:
        """The experiment as plain values. Many checks read them, and `dump` takes milliseconds."""
        if self._settings is None or self._settings[0] is not self.experiment:
            self._settings = self.experiment, dump(self.experiment)
        return self._settings[1]

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches that this process takes in an update."""
        return self.experiment.train.accumulate * self.lanes

    @cached_property
    def examples(self) -> Examples:
        """Examples of all parts of the data."""
        assert self.data is not None
        return Examples(self.data, self.batch, self.experiment.data.batch)

    @cached_property
    def entropies(self) -> tuple[float, float]:
        """Nats per token of the text by the frequencies of tokens, and of tokens given the one before.

        From a few batches; (0, 0) without a text.
        """
        data = self.data
        with suppress(UserError):  # the text is not there
            data = data or self.experiment.data.build(self.experiment.model.context)
        if not isinstance(data, TextData) or not isinstance(self.experiment.task, LanguageConfig):
            return 0.0, 0.0
        rows = torch.cat([self.experiment.batch(data, number, 0, 1).inputs for number in range(SAMPLED)])
        return token_entropies(rows, self.vocabulary)

    @cached_property
    def task(self) -> Task:
        """The task of the config."""
        return self.experiment.task.build()

    def terms(self, batch: Batch) -> dict[str, Term]:
        """The task's loss terms, in the run's number format."""
        assert self.model is not None
        return self.terms_of(self.model, batch)

    def terms_of(self, model: Model, batch: Batch) -> dict[str, Term]:
        """The same for another model."""
        with self.autocast():
            return self.task.terms(model, batch)

    def autocast(self) -> torch.autocast:
        """The run's number format of matrix products."""
        mixed = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if mixed else torch.bfloat16, enabled=mixed)

    @property
    def lower_rate(self) -> str:
        """The option for a lower learning rate: all checks suggest the same one."""
        return f"--train.optimizer.lr {short(self.experiment.train.optimizer.lr / 10)}"

    @property
    def vocabulary(self) -> int:
        return self.experiment.model.vocabulary

    def usable(self, batch: Batch) -> bool:
        """There is a model that can run on this batch: all tokens are in the vocabulary."""
        return self.model is not None and not any(out_of_range(batch, self.vocabulary))

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


def token_entropies(rows: Tensor, vocabulary: int) -> tuple[float, float]:
    """Nats per token of rows [B, N] from the frequencies of tokens, and of tokens given the one before.

    With the correction for small samples of Miller (1955); equal for too few tokens.
    """
    single = rows.unique(return_counts=True)[1]
    pairs = (rows[:, :-1] * vocabulary + rows[:, 1:]).unique(return_counts=True)[1]
    alone, both = (
        float(torch.special.entr(n / n.sum()).sum()) + (len(n) - 1) / (2 * int(n.sum())) for n in (single, pairs)
    )
    enough = int(pairs.sum()) >= PAIRS * min(len(single), vocabulary) ** 2
    return alone, both - alone if enough else alone
