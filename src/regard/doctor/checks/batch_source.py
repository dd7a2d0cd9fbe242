"""Training batches that are not windows of the training text, or come from a part of it only."""

import math

import numpy as np
from numpy.typing import NDArray

from regard.data import TextBatch, TextData
from regard.data.texts.rolling_hash import hashes_of
from regard.doctor import Check, Findings, RecentBatches, TrainingRun
from regard.doctor.schedule import FREE_READ

MOST = 2**22  # tokens of a text that is searched
INDEXED = 4  # tokens that are read in the time in which one is indexed
#: Chance that windows drawn evenly look as uneven as those that are reported (two-sided Kolmogorov-Smirnov bound).
CHANCE = 1e-9
FEWEST = 24  # windows from which on their places are judged
COVERED = 0.5  # a finding only if the windows leave out so much of the text


class BatchSource(Check):
    kind, description = "batch_source", "batches are not drawn from the training text"
    rank = 0
    follows = ("target_fault",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._index: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None  # sorted hashes, and their places
        self._held_out: NDArray[np.uint64] | None = None

    def on_batches(self, batches: RecentBatches) -> Findings:
        data = self.run.data
        if not isinstance(data, TextData) or data.train_count > MOST or data.context < 2:
            return
        if self._index is None:
            if data.train_count > max(FREE_READ, batches.reading / INDEXED):
                return
            self._read(data)
        rows = np.concatenate([one.inputs.numpy() for one in batches.batches.values() if isinstance(one, TextBatch)])
        if not len(rows) or rows.shape[1] != data.context:
            return
        yield from self._judge(data, rows)

    def _read(self, data: TextData) -> None:
        parts = []
        for part in ("train", "validation"):
            pieces = [b.inputs[b.targets >= 0].numpy() for b in data.sliding_batches(part, 256, data.context)]
            tokens = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
            parts.append(hashes_of(tokens, data.context) if len(tokens) >= data.context else np.zeros(0, np.uint64))
        order = np.argsort(parts[0], kind="stable")
        self._index, self._held_out = (parts[0][order], order), np.sort(parts[1])

    def _judge(self, data: TextData, rows: NDArray[np.int64]) -> Findings:
        assert self._index is not None
        assert self._held_out is not None
        hashes, places = self._index
        wanted = np.array([hashes_of(row, data.context)[0] for row in rows])
        left, right = (np.searchsorted(hashes, wanted, side) for side in ("left", "right"))
        missing = left == right
        if missing.any():
            held_out = np.isin(wanted[missing], self._held_out).mean()
            evidence = f"{missing.mean():.0%} of the rows of the newest batches are nowhere in it"
            cause = "rows are changed after they were read: shuffled, replaced or corrupted tokens, or another text"
            if held_out > 0.5:
                evidence += f", and {held_out:.0%} of those are in the validation part"
                cause = "the run trains on text that is held out, so its validation loss says nothing"
            change = "take rows as they are in the training part: windows of consecutive tokens"
            yield self.finding("training batches", evidence, cause, change)
            return
        once = right - left == 1
        if data.order == "random" and once.sum() >= FEWEST:
            starts = np.sort(places[left[once]]) / max(len(hashes), 1)
            yield from self._spread(starts)

    def _spread(self, starts: NDArray[np.float64]) -> Findings:
        count = len(starts)
        steps = np.arange(count + 1) / count
        distance = max(np.abs(steps[1:] - starts).max(), np.abs(steps[:-1] - starts).max())
        gaps = np.diff(np.concatenate([[0.0], starts, [1.0]]))
        if distance > math.sqrt(math.log(2 / CHANCE) / (2 * count)) and gaps.max() > COVERED:
            between = f"between {starts[0]:.1%} and {starts[-1]:.1%} of it"
            evidence = f"{count} windows begin {between}; {gaps.max():.0%} of it is left out"
            cause = "the loader draws its windows from a part of the text"
            yield self.finding("training batches", evidence, cause, "draw windows from the whole training part")
