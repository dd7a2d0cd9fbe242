"""Looks up runs of tokens in the training text, which is read once, piece by piece."""

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from regard.data import TextBatch, TextData
from regard.data.texts.rolling_hash import hashes_of

CHUNK, SEARCHED = 2**16, 400  # tokens that are read at a time; runs of each part, and rows, that are searched for
FEWEST = 8  # runs that must have been searched for
Tokens = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class TextScan:
    """Counts the places in the training text of sampled runs of both parts, and of rows [B, N] of batches.

    A row is looked up by runs that cover it: they must all be there.
    """

    def __init__(self, data: TextData, run: int, validation: Tokens, rows: Tokens):
        self.complete = False
        self._run, self._row_run = run, min(run, data.context)
        self._pieces = data.sliding_batches("train", max(1, CHUNK // data.context), data.context)
        self._wanted = {"validation": _sample(_hashes(validation, run))}
        size, chosen = rows.shape[1], rows[:: max(1, len(rows) // SEARCHED)]
        starts = sorted({*range(0, size - self._row_run, self._row_run), size - self._row_run})
        at = np.arange(len(chosen))[:, None] * size + np.array(starts)
        self._rows = _hashes(chosen.ravel(), self._row_run)[at]
        self._wanted["rows"] = np.unique(self._rows)
        self._counts = {part: np.zeros(len(hashes), np.int64) for part, hashes in self._wanted.items()}
        self._places = np.zeros(len(self._wanted["rows"]), np.int64)
        self._size, self._tail = 0, np.zeros(0, np.int64)  # tokens that were read, and the last of them

    def advance(self) -> int:
        """Read the next piece; return its size. 0: there is none."""
        tokens = text_tokens(*islice(self._pieces, 1))
        self.complete = not len(tokens)
        text, first = np.concatenate([self._tail, tokens]), self._size - len(self._tail)
        for length in sorted({self._run, self._row_run}):
            skip = max(0, len(self._tail) - length + 1)  # runs that were counted with the piece before
            hashes = _hashes(text[skip:], length)
            if length == self._run and "training" not in self._wanted:
                self._wanted["training"] = _sample(hashes)
                self._counts["training"] = np.zeros(len(self._wanted["training"]), np.int64)
            for part, wanted in self._wanted.items():
                if length == (self._row_run if part == "rows" else self._run) and len(tokens):
                    found, at = occurrences(wanted, hashes)
                    self._counts[part] += np.bincount(found, minlength=len(wanted))
                    if part == "rows":
                        self._places[found] = first + skip + at
        self._size += len(tokens)
        self._tail = text[max(0, len(text) - self._run + 1) :]
        return len(tokens)

    def share(self, part: str, times: int) -> float:
        """The share of the runs of a part that were found so often."""
        counts = self._counts.get(part, np.zeros(0))
        return float((counts >= times).mean()) if len(counts) >= FEWEST else 0.0

    def missing_rows(self) -> NDArray[np.bool_]:
        """Of each row, whether some of it is not in the text."""
        return np.asarray((self._counts["rows"][self._index()] == 0).any(1))

    def held_out_rows(self, validation: Tokens) -> NDArray[np.bool_]:
        """Of each row, whether it is in the validation text."""
        return np.asarray(np.isin(self._rows, _hashes(validation, self._row_run)).all(1))

    def row_places(self) -> NDArray[np.float64]:
        """The places, from 0 to 1, at which those rows begin that are in the text once."""
        first = self._index()[:, 0]
        return self._places[first[self._counts["rows"][first] == 1]] / max(self._size, 1)

    def _index(self) -> NDArray[np.int64]:
        return np.searchsorted(self._wanted["rows"], self._rows)


def text_tokens(*batches: TextBatch) -> Tokens:
    """The tokens of batches that cover a text."""
    return np.concatenate([np.zeros(0, np.int64), *(batch.inputs[batch.targets >= 0].numpy() for batch in batches)])


def collision(data: TextData) -> float:
    """The probability that two windows of the first tokens of the text are equal."""
    tokens = text_tokens(*islice(data.sliding_batches("train", max(1, CHUNK // data.context), data.context), 1))
    counts = np.unique(_hashes(tokens, data.context), return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / max(counts.sum() * (counts.sum() - 1), 1.0))


def occurrences(searched: Hashes, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each of the hashes that is among ``searched``, which is sorted: its place there, and its own place."""
    prefixes = np.zeros(2**16, np.bool_)  # most hashes begin unlike all that are searched for, so none are sorted
    prefixes[searched >> np.uint64(48)] = True
    likely = np.flatnonzero(prefixes[hashes >> np.uint64(48)])
    places = np.minimum(np.searchsorted(searched, hashes[likely]), max(len(searched) - 1, 0))
    same = searched[places] == hashes[likely] if len(searched) else np.zeros(len(likely), np.bool_)
    return places[same], likely[same]


def _hashes(tokens: Tokens, run: int) -> Hashes:
    return hashes_of(tokens, run) if len(tokens) >= run else np.zeros(0, np.uint64)


def _sample(hashes: Hashes) -> Hashes:
    """Evenly spaced hashes, sorted."""
    return np.unique(hashes[:: max(1, len(hashes) // SEARCHED)])
