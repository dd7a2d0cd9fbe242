"""Batches of labelled texts: rows of similar length with little padding. The batch of a step is a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Data, LabeledBatch
from regard.data.tokenizers import EncodedText, Tokenizer
from regard.data.translation.encoded_sentences import Encoded
from regard.data.translation.length_buckets import LengthBuckets


class Inputs(NamedTuple):
    """The examples of a part, as tokens."""

    tokens: Encoded  # of a text that is read in windows, all of them
    types: Encoded
    targets: Encoded  # one for each example, one for each of its tokens, or the two ends of an answer

    @classmethod
    def of(cls, texts: list[EncodedText], targets: list[NDArray[np.int64]]) -> Inputs:
        """From encoded texts and their targets."""
        return cls(joined([text.ids for text in texts]), joined([text.types for text in texts]), joined(targets))

    def pick(self, numbers: NDArray[np.int64]) -> Inputs:
        """The examples with these numbers."""
        return Inputs(*(part.pick(numbers) for part in self))

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.tokens.counts)


def joined(rows: list[NDArray[np.int64]]) -> Encoded:
    """Rows of numbers as one array."""
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    flat = np.concatenate(rows).astype(np.int32) if rows else np.zeros(0, np.int32)
    return Encoded(flat, np.cumsum(counts) - counts, counts)


def windows_of(rows: Encoded, width: int) -> NDArray[np.int64]:
    """The number of windows of each row."""
    return np.maximum(1, -(-rows.counts // width))


def divided(rows: Encoded, width: int) -> Encoded:
    """Rows of at most ``width`` numbers instead of longer ones, in order."""
    pieces = windows_of(rows, width)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    skipped = (np.arange(len(first)) - first) * width
    counts = np.minimum(np.repeat(rows.counts, pieces) - skipped, width)
    return Encoded(rows.tokens, np.repeat(rows.starts, pieces) + skipped, counts)


class LabeledData(Data[LabeledBatch]):
    """Labelled examples in three parts."""

    tokenizer: Tokenizer
    vocabulary: int
    sha256: str
    dynamic_shapes = True
    tokens_kept: int = 0  # of the texts of the training part, after long ones were cut
    tokens_given: int = 0  # and before; 0: unknown

    def __init__(
        self,
        parts: list[Inputs],
        tokenizer: Tokenizer,
        labels: tuple[str, ...],
        *,
        window: int,
        name: str,
        sha256: str,
    ) -> None:
        """`parts`: train, validation, test. `labels`: the classes or tags; empty for answers.

        `window`: the length of a row at most; more tokens are further windows of the same text.
        """
        self.train, self.validation, self.test = parts
        self.tokenizer, self.vocabulary = tokenizer, tokenizer.size
        self.labels, self.window, self.name, self.sha256 = labels, window, name, sha256
        self.validation_count, self.test_count = self.validation.count, self.test.count
        self.smallest_batch = int(self.train.tokens.counts.max())
        self._buckets = _buckets(self.train)

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each label is a target in the training part, [labels]."""
        targets = self.train.targets.tokens
        return np.bincount(targets[targets != IGNORE_INDEX], minlength=len(self.labels))

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> LabeledBatch:
        """Part ``rank`` of the batch of a step: examples with about ``size`` tokens, with padding."""
        return self._batch(self.train, self._buckets.rows(step, seed=seed, rank=rank, world=world, size=size))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[LabeledBatch]:
        """The validation part, short examples first; over all ranks each example once."""
        return self._in_order(self.validation, size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[LabeledBatch]:
        """The test part, in the same way."""
        return self._in_order(self.test, size, rank, world)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every training example occurs once."""
        return len(self._buckets.cuts(size * world)) - 1

    def _in_order(self, part: Inputs, size: int, rank: int, world: int) -> Iterator[LabeledBatch]:
        for numbers in _buckets(part).in_order(size, rank, world):
            yield self._batch(part, numbers)

    def _batch(self, part: Inputs, numbers: NDArray[np.int64]) -> LabeledBatch:
        """The padded batch of these examples; of none, one without a target, since every rank needs a batch."""
        import torch  # not at the top: configs are read without torch

        from regard.attention import Padded

        some = part.pick(numbers if len(numbers) else np.zeros(1, np.int64))
        rows, types = (divided(side, self.window) for side in (some.tokens, some.types))
        width, wide = int(rows.counts.max()), int(some.targets.counts.max())
        filled = np.arange(width) < rows.counts[:, None]
        counted = (np.arange(wide) < some.targets.counts[:, None]) & bool(len(numbers))
        targets = np.where(counted, some.targets.rectangle(wide), IGNORE_INDEX)
        texts = np.repeat(np.arange(some.count), windows_of(some.tokens, self.window))
        arrays = (*(np.where(filled, side.rectangle(width), 0) for side in (rows, types)), targets, texts)
        tokens, types, targets, texts = map(torch.from_numpy, arrays)
        slots = Padded(torch.from_numpy(rows.counts), width)
        return LabeledBatch(tokens, targets, slots, types, texts if len(tokens) > len(targets) else None)


def _buckets(part: Inputs) -> LengthBuckets:
    return LengthBuckets(part.tokens.counts, part.tokens.counts)
