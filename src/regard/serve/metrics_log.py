"""The metrics of a run, parsed once and kept as a table of limited size, however long the run and many the clients."""

from functools import lru_cache
from pathlib import Path

from regard.runs.disk import JsonObject
from regard.serve.limits import METRICS_TAIL, ROWS
from regard.serve.records import JsonlTail, Row, finite, numbers_of, table_of


class MetricsLog:
    """The rows of metrics.jsonl, one per step; `refresh` reads only what is new.

    Of a long run every ``stride``-th row is kept, all rows with a validation loss, and the last one. The stride doubles
    when more than 2 * `ROWS` rows are kept, so that they stay evenly spaced.
    """

    def __init__(self, path: Path):
        self._tail = JsonlTail(path)
        self.records = 0  # that were read so far
        self.restarts = 0  # how often the file was replaced or truncated, as by a resumed run
        self._clear()

    def _clear(self) -> None:
        self._rows: dict[int, Row] = {}  # by step
        self._numbers: dict[int, int] = {}  # step -> number of the row among all recorded
        self._stride, self.recorded = 1, 0

    def refresh(self) -> "MetricsLog":
        """Read the records since the previous call."""
        records, restarted = self._tail.read()
        if restarted:
            self.restarts += 1
            self._clear()
        self.records += len(records)
        for record in records:
            self._add(record)
        return self

    def _add(self, record: JsonObject) -> None:
        numbers, step = numbers_of(record), record["step"]
        if len(numbers) < 2:  # only the step
            return
        if step not in self._rows:
            if self._rows:
                self._drop(next(reversed(self._rows)))  # it is no longer the last one
            self._rows[step], self._numbers[step] = {}, self.recorded
            self.recorded += 1
        self._rows[step].update(numbers)
        if len(self._rows) > 2 * ROWS:
            self._stride *= 2
            for earlier in list(self._rows)[:-1]:
                self._drop(earlier)

    def _drop(self, step: int) -> None:
        """Remove a row that is between two of the kept ones."""
        if self._numbers[step] % self._stride and "validation_loss" not in self._rows[step]:
            del self._rows[step], self._numbers[step]

    def last_step(self) -> int:
        """The newest step, or -1."""
        return next(reversed(self._rows), -1)

    def table(self, after: int) -> str:
        """The rows of the steps after ``after``, at most `ROWS` of them, as JSON."""
        rows = [row for step, row in self._rows.items() if step > after]
        everything = len(rows) == len(self._rows)
        return table_of(rows, self.recorded if everything else len(rows))


class ProgressLog:
    """The last step and losses of metrics.jsonl, from its end only: a list of many runs must not read all of it."""

    def __init__(self, path: Path):
        self._tail = JsonlTail(path, METRICS_TAIL)
        self._clear()

    def _clear(self) -> None:
        self._progress: JsonObject = {"step": 0, "loss": None, "validation_loss": None}

    def refresh(self) -> JsonObject:
        """The values after the newest records."""
        records, restarted = self._tail.read()
        if restarted:
            self._clear()
        for record in records:
            if "diverged" not in record:
                self._progress["step"] = max(self._progress["step"], record["step"])
            self._progress |= {name: finite(record[name]) for name in ("loss", "validation_loss") if name in record}
        return dict(self._progress)


@lru_cache(32)
def metrics_log(path: Path) -> MetricsLog:
    """The log of a file, shared by all requests."""
    return MetricsLog(path)


@lru_cache(4096)
def progress_log(path: Path) -> ProgressLog:
    """The progress of a file, shared by all requests."""
    return ProgressLog(path)
