"""Windows of time series: a history and the points that follow it, cut when a batch needs them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import ArrayBatch, Example
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.series.table import SeriesTable, read_series
from regard.data.split import Split
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig

PARTS: tuple[Part, ...] = ("train", "validation", "test")
HELD_OUT = {"train": "limit", "validation": "validation", "test": "test"}  # the option that gives a part more rows


class Scale(NamedTuple):
    """What standardizes each of M series: the mean and the standard deviation of its training part."""

    means: NDArray[np.float64]  # [M]
    deviations: NDArray[np.float64]  # [M]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Scale:
        """The scale of values [T, M]; a constant series keeps its scale."""
        deviations = values.std(0)
        return cls(values.mean(0), np.where(deviations > 0, deviations, 1.0))

    def standardized(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Values [..., M] less the means, over the deviations."""
        return ((values - self.means) / self.deviations).astype(np.float32)


class SeriesData(ExampleData[ArrayBatch]):
    """Every window of a table, in three parts by the time of the points to forecast.

    The history of the first windows of the validation and test parts lies in the part before, as it would in use.
    """

    sha256: str
    shape: tuple[int, int]

    def __init__(self, table: SeriesTable, parts: Split, points: int, horizon: int, *, name: str) -> None:
        """``points``: of a history; ``horizon``: points to forecast. The first part alone gives the scale."""
        self.columns, self.times, self.points, self.horizon = table.columns, table.times, points, horizon
        self.scale = Scale.of(table.values[: parts.train.stop])
        self.rows = self.scale.standardized(table.values)
        self.starts: dict[Part, int] = {}  # of the points to forecast of the first window
        counts = []
        for part, span in zip(PARTS, parts, strict=True):
            self.starts[part] = max(span.start, points)
            counts.append(max(0, span.stop - horizon - self.starts[part] + 1))
            if not counts[-1] and (span.size or part == "train"):
                raise UserError(
                    f"the {part} part of {name} has {span.size:,} rows, too few for a history of {points} points and "
                    f"{horizon} to forecast; lower --data.points or --data.horizon, or change --data.{HELD_OUT[part]}"
                )
        super().__init__((counts[0], counts[1], counts[2]), name)
        self.shape = (points, len(table.columns))
        digest = hashlib.sha256(repr((table.columns, parts, points, horizon)).encode())
        digest.update(np.ascontiguousarray(table.values).data)
        self.sha256 = digest.hexdigest()

    def train_batch(self, numbers: Numbers, random: Uniform) -> ArrayBatch:
        return self.part_batch("train", numbers)

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> ArrayBatch:
        first = self.starts[part] + numbers[:, None]
        future = self.rows[first + np.arange(self.horizon)]  # [B, H, M]
        history = self.rows[first + np.arange(-self.points, 0)]  # [B, T, M]
        return series_batch(history, future if counts else np.full_like(future, np.nan))

    def held_out(self, count: int) -> list[Example]:
        """Windows at equal distances in the test part, or in the validation part if there is none."""
        part: Part = "test" if self.test_count else "validation"
        total, found = (self.test_count if part == "test" else self.validation_count) or 0, []
        for number in np.unique(np.linspace(0, total - 1, min(count, total), dtype=np.int64)):
            last = self.starts[part] + int(number) - 1
            when = f", after {self.times[last]}" if self.times else ""
            found.append(Example(f"{part} window {number}{when}", self.part_batch(part, np.array([number]))))
        return found


def series_batch(history: NDArray[np.float32], future: NDArray[np.float32]) -> ArrayBatch:
    """A batch of histories [B, T, M] and what follows [B, H, M]; NaN there does not count."""
    import torch  # not at the top: configs are read without torch

    return ArrayBatch(torch.from_numpy(history), torch.from_numpy(future))


def series_examples(path: Path, model: ModelConfig) -> list[Example]:
    """The end of a table of the user's own, of the series that a model was trained on, to be continued."""
    from regard.models import ForecasterConfig

    if not isinstance(model, ForecasterConfig):
        raise UserError(f"a {model.kind} forecasts no series")
    head = model.forecast
    table = read_series(path, head.columns)
    if len(table.values) < model.points:
        raise UserError(f"{path} has {len(table.values)} rows, and this model forecasts from {model.points}; give more")
    scale = Scale(np.array(head.means), np.array(head.deviations)) if head.means else Scale.of(table.values)
    history = scale.standardized(table.values[-model.points :])[None]
    unknown = np.full((1, head.horizon, len(table.columns)), np.nan, np.float32)
    when = f", after {table.times[-1]}" if table.times else ""
    return [Example(f"{path}{when}", series_batch(history, unknown))]
