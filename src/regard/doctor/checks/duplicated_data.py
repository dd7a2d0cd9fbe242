"""Training data that comes more than once, or is held out and trained on.

Rows of batches and pairs of sentences are compared as they are; of a text, runs of tokens by a rolling hash.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data import PairBatch, PairData, SentencePairs, TextBatch, TextData
from regard.data.texts.rolling_hash import hashes_of
from regard.doctor import Check, Findings, RecentBatches, TrainingRun
from regard.prove.batches import Batch

#: The share of a batch's rows that came before in the same half of an epoch.
REPEATED = 0.3
#: The share of runs of 50 tokens (Lee et al. 2022, sec. 4) of the validation text that are in the training text, and of
#: those that are twice in the training text. They find some 3 % in well-known datasets.
RUN, KNOWN, TWICE = 50, 0.1, 0.3
#: Tokens of the training text that are read at a time and in all, and runs that are searched for.
CHUNK, MOST, SEARCHED = 2**16, 2**22, 400
#: The share of runs that come again from which on the whole text is one passage many times, on purpose.
PERIODIC = 0.97
#: The probability, for windows drawn at random from the text, of as many equal rows as are reported.
CHANCE = 1e-6
HELD_OUT = 64  # batches of the validation text
FEWEST = 8  # runs or pairs that must have been searched for


class DuplicatedData(Check):
    kind, description = "duplicated_data", "data comes more than once"

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._reading: Iterator[tuple[tuple[float, float], int]] | None = None
        self._read = 0.0  # tokens of the text; infinite when all of it was read
        self._shares = (0.0, 0.0)  # as far as the text was read
        self._compared = False  # the pairs
        self._collision: float | None = None  # the probability that two random windows are equal

    def on_batches(self, batches: RecentBatches) -> Findings:
        yield from self._rows(batches.batches)
        data = self.run.data
        if isinstance(data, TextData) and data.parts.validation.size:
            self._reading = self._reading or compare_texts(data, RUN)
            while self._read < max(1, batches.reading):
                self._shares, read = next(self._reading, (self._shares, math.inf))
                self._read += read
            yield from self._judge(*self._shares, f"runs of {RUN} tokens", KNOWN)
        elif isinstance(data, PairData) and not self._compared:
            self._compared = True
            yield from self.pairs(data.train, data.validation)

    def _rows(self, batches: dict[int, Batch]) -> Findings:
        """Rows of the newest batch that an earlier one had, though other text is left."""
        (newest, batch), *earlier = batches.items()
        rows, count = row_bytes(batch), len(batch.inputs)
        if len(rows) < (1 - REPEATED) * count and self._unlikely(count - len(rows), count):
            evidence = f"batch {newest} has {count} rows, of which {len(rows)} differ"
            cause = "the loader gives the same rows several times within a batch"
            change = "draw every row of a batch independently"
            yield self.finding("training batches, within each", evidence, cause, change)
            return
        data = self.run.data
        epoch = math.inf if data is None else data.epoch(self.run.experiment.data.batch)
        for number, other in earlier:
            # An epoch of pairs has every pair once; the next one may begin with those at its end.
            if newest - number > epoch / 2 or (isinstance(data, PairData) and newest // epoch != number // epoch):
                break
            same = len(rows & row_bytes(other))
            share = same / max(len(rows), 1)
            if share > REPEATED and self._unlikely(same, len(rows)):
                evidence = f"{share:.0%} of batch {newest} is in batch {number} too, {newest - number} before it"
                cause = "the loader cycles through a few batches, or its seed starts again"
                change = "draw batches from the whole text: use the batch's number in its seed"
                yield self.finding(f"training batches, every {newest - number}", evidence, cause, change)
                return

    def _unlikely(self, equal: int, rows: int) -> bool:
        """Whether so many of the rows would not be equal to one of as many others by chance."""
        if self._collision is None:
            self._collision = collision(self.run.data) if isinstance(self.run.data, TextData) else 0.0
        each = 1 - (1 - self._collision) ** rows
        tail = (math.comb(rows, k) * each**k * (1 - each) ** (rows - k) for k in range(equal, rows + 1))
        return sum(tail) < CHANCE

    def pairs(self, train: SentencePairs, validation: SentencePairs) -> Findings:
        """Pairs of sentences. A few short ones may come twice in sound data."""
        own, held_out = (Counter(zip(part.sources, part.targets, strict=True)) for part in (train, validation))
        known = sum(pair in own for pair in held_out) / len(held_out) if len(held_out) >= FEWEST else 0.0
        again = sum(n for n in own.values() if n > 1) / own.total() if own.total() >= FEWEST else 0.0
        yield from self._judge(known, again, "pairs", TWICE)

    def _judge(self, known: float, repeated: float, unit: str, limit: float) -> Findings:
        if repeated > PERIODIC and unit != "pairs":
            return
        if known > limit:
            evidence = f"{known:.0%} of its {unit} are in the training text"
            cause = "the validation part is a copy of training text, so its loss says nothing about other text"
            yield self.finding("validation", evidence, cause, "remove the copies, or hold out other text")
        if repeated > TWICE:
            evidence = f"{repeated:.0%} of its {unit} come more than once"
            cause = "the same documents are in the text several times"
            yield self.finding("training text", evidence, cause, "remove the copies from --data.path")


def row_bytes(batch: Batch) -> set[bytes]:
    """The tokens of each row; of pairs without padding, which differs from batch to batch."""
    if not isinstance(batch, PairBatch):
        return {row.tobytes() for row in batch.inputs.numpy()}
    padding = torch.arange(batch.source.shape[1]) >= batch.source_lengths[:, None]
    sides = [batch.source.masked_fill(padding, -1), batch.inputs.masked_fill(batch.targets < 0, -1)]
    return {b"|".join(row[row >= 0].numpy().tobytes() for row in rows) for rows in zip(*sides, strict=True)}


def compare_texts(data: TextData, run: int) -> Iterator[tuple[tuple[float, float], int]]:
    """Read the training text in chunks; after each, the shares of sampled runs that were found so far, and its size.

    They are that of validation runs that are in the training text, and that of training runs that occur more than once.
    """
    held_out = _tokens(*islice(data.validation_batches(64), HELD_OUT))
    searched = [_sample(hashes_of(held_out, run)) if len(held_out) >= run else np.zeros(0, np.uint64)]
    batches = data.sliding_batches("train", max(1, CHUNK // data.context), data.context)
    counts: list[NDArray[np.int64]] = []
    for tokens in map(_tokens, islice(batches, MOST // CHUNK)):
        if len(tokens) >= run:
            hashes = hashes_of(tokens, run)
            if not counts:
                searched.append(_sample(hashes))
                counts = [np.zeros(len(runs), np.int64) for runs in searched]
            counts = [count + occurrences(runs, hashes) for count, runs in zip(counts, searched, strict=True)]
            known, own = counts
            yield (_share(known > 0), _share(own > 1)), len(tokens)


def collision(data: TextData) -> float:
    """The probability that two windows of the first tokens of the text are equal."""
    tokens = _tokens(*islice(data.sliding_batches("train", max(1, CHUNK // data.context), data.context), 1))
    if len(tokens) <= data.context:
        return 0.0
    counts = np.unique(hashes_of(tokens, data.context), return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / max(counts.sum() * (counts.sum() - 1), 1.0))


def _share(found: NDArray[np.bool_]) -> float:
    return float(found.mean()) if len(found) >= FEWEST else 0.0


def _tokens(*batches: TextBatch) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *(batch.inputs[batch.targets >= 0].numpy() for batch in batches)])


def _sample(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Evenly spaced hashes, sorted."""
    return np.unique(hashes[:: max(1, len(hashes) // SEARCHED)])


def occurrences(searched: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How often each of ``searched``, which is sorted, is among the hashes."""
    prefixes = np.zeros(2**16, np.bool_)  # most hashes begin unlike all that are searched for, so none are sorted
    prefixes[searched >> np.uint64(48)] = True
    likely = hashes[prefixes[hashes >> np.uint64(48)]]
    places = np.searchsorted(searched, likely)
    places[places == len(searched)] = 0
    return np.bincount(places[searched[places] == likely] if len(searched) else [], minlength=len(searched))
