"""Whether what is held out stands in what is trained on, and whether that repeats itself.

Pairs to translate are compared as they are; of a text, runs of tokens by a rolling hash (data/texts/rolling_hash.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.texts.rolling_hash import hashes_of
from regard.doctor import limits
from regard.doctor.finding import Finding

#: Tokens of the training text that are looked through, at a time and in all, and runs that are looked for.
CHUNK, MOST, ASKED = 2**16, 2**22, 400
FEWEST = 8  # runs that must have been looked for


class Reader:
    """Reads the training text piece by piece, as long as there is time; what it has seen only grows."""

    def __init__(self, data: Any, context: int):
        self._run = min(context, limits.RUN)
        self._data = data if hasattr(data, "sliding_batches") and data.parts.validation.size else None
        self._pairs = data if self._data is None and hasattr(data, "train") else None
        self._chunks: Iterator[NDArray[np.int64]] | None = None
        self._held = self._own = np.zeros(0, np.uint64)
        self._seen = self._twice = np.zeros(0, np.int64)

    def read(self, patience: float) -> Iterator[Finding]:
        """Go on for so many seconds, at least by one piece."""
        if self._pairs is not None:
            yield from _pairs(self._pairs.train, self._pairs.validation)
            self._pairs = None  # once is enough: it has seen them all
        if self._data is None:
            return
        end = time.perf_counter() + patience
        if self._chunks is None:
            self._chunks = _chunks(self._data, self._run)
            self._held = _sample(_tokens(self._data.validation_batches(64), CHUNK), self._run)
            self._seen = np.zeros(len(self._held), np.int64)
        for chunk in self._chunks:
            hashes = hashes_of(chunk, self._run)
            if not len(self._own):
                self._own = np.unique(hashes[:: max(1, len(hashes) // ASKED)])
                self._twice = np.zeros(len(self._own), np.int64)
            self._seen += _counts(self._held, hashes)
            self._twice += _counts(self._own, hashes)
            if time.perf_counter() > end:
                break
        yield from self._judge()

    def _judge(self) -> Iterator[Finding]:
        run = f"runs of {self._run} tokens"
        known = float((self._seen > 0).mean()) if len(self._held) >= FEWEST else 0.0
        again = float((self._twice > 1).mean()) if len(self._own) >= FEWEST else 0.0
        if known > limits.KNOWN:
            yield _known(known, run)
        if again > limits.TWICE:
            yield _repeated(again, run)


def _pairs(train: Any, validation: Any) -> Iterator[Finding]:
    """Short sentences may come twice by right, most of them not."""
    own, held = (Counter(zip(part.sources, part.targets, strict=True)) for part in (train, validation))
    known = sum(pair in own for pair in held) / len(held) if len(held) >= FEWEST else 0.0
    again = sum(count for count in own.values() if count > 1) / own.total() if own.total() >= FEWEST else 0.0
    if known > limits.TWICE:
        yield _known(known, "pairs")
    if again > limits.TWICE:
        yield _repeated(again, "pairs")


def _known(share: float, what: str) -> Finding:
    evidence = f"{share:.0%} of its {what} stand in the training text"
    cause = "the validation part is a copy of training text, so that its loss says nothing about other text"
    return Finding("duplicated_data", "validation", evidence, cause, "remove the copies, or hold out other text")


def _repeated(share: float, what: str) -> Finding:
    evidence = f"{share:.0%} of its {what} come more than once"
    cause = "the same documents are in the text several times"
    return Finding("duplicated_data", "training text", evidence, cause, "remove the copies from --data.path")


def _chunks(data: Any, run: int) -> Iterator[NDArray[np.int64]]:
    """The training text from its beginning, in pieces that overlap by a run."""
    kept, total = np.zeros(0, np.int64), 0
    for batch in data.sliding_batches("train", max(1, CHUNK // data.context), data.context):
        new = batch.inputs[batch.targets >= 0].numpy()
        total += len(new)
        kept = np.concatenate((kept, new))
        if len(kept) >= run:
            yield kept
            kept = kept[-run + 1 :]
        if total >= MOST:
            return


def _tokens(batches: Iterable[Any], most: int) -> NDArray[np.int64]:
    parts, total = [np.zeros(0, np.int64)], 0
    for batch in islice(batches, 64):
        parts.append(batch.inputs[batch.targets >= 0].numpy())
        total += len(parts[-1])
        if total > most:
            break
    return np.concatenate(parts)


def _sample(tokens: NDArray[np.int64], run: int) -> NDArray[np.uint64]:
    if len(tokens) < run:
        return np.zeros(0, np.uint64)
    hashes = hashes_of(tokens, run)
    return np.unique(hashes[:: max(1, len(hashes) // ASKED)])


def _counts(wanted: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How often each of the sorted ``wanted`` is among the hashes."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    place = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
    return np.bincount(place[wanted[place] == hashes], minlength=len(wanted))
