"""Language modeling data: windows of a text. The batch of a step is a pure function of (seed, step, rank)."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from regard.data.base import IGNORE_INDEX, Data, TextBatch
from regard.data.split import Split, TokenSpan
from regard.data.texts.tokens import JoinedTokens
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

_CHUNK = 1 << 20  # tokens


class TextData(Data[TextBatch]):
    """The tokens of one text, split by position. No window crosses the boundary of a part."""

    tokenizer: Tokenizer
    vocabulary: int
    sha256: str
    validation_count: int
    test_count: int

    def __init__(
        self,
        tokens: JoinedTokens,
        tokenizer: Tokenizer,
        context: int,
        parts: Split,
        *,
        name: str,
        sha256: str,
        order: Literal["random", "consecutive"] = "random",
        words: bool = False,
    ) -> None:
        self.tokenizer, self.vocabulary = tokenizer, tokenizer.size
        self.context, self.parts, self.order = context, parts, order
        self.name, self.sha256 = name, sha256
        self._tokens = tokens
        self._edges = tokenizer.word_edges() if words else None
        self.train_count = parts.train.size
        self.validation_count, self.test_count = parts.validation.targets, parts.test.targets
        if context < 1:
            raise UserError(f"the context is {context}, but must be at least 1")

    def epoch(self, size: int, world: int = 1) -> float:
        """Number of steps with as many tokens as the training part."""
        return self.train_count / (size * world * self.context)

    def amount(self, part: str) -> tuple[int, int]:
        """The numbers of characters and bytes of a part's targets."""
        chosen = self.parts._asdict()[part]
        stream, characters, size = self.tokenizer.stream(), 0, 0
        for start in range(chosen.start + 1, chosen.stop, _CHUNK):
            ids = self._tokens.windows(np.array([start]), min(_CHUNK, chosen.stop - start))[0]
            characters += len(stream.feed(ids.tolist()))
            size += int(self.tokenizer.widths[ids].sum())
        return characters + len(stream.end()), size

    def __len__(self) -> int:
        """Number of tokens, the held-out parts included."""
        return len(self._tokens)

    def offsets(self, step: int, *, seed: int, count: int) -> np.ndarray:  # [count]
        """The start positions of a whole batch of random windows.

        The generator is counter-based, so there is no state to save or restore. Its raw words are used, since numpy
        keeps only those the same across versions. (The remainder favors small offsets by less than one part in 10**7,
        even for a terabyte of text.)
        """
        return _draws(seed, step, count, below=self.train_count - self.context)

    def _consecutive(self, step: int, *, seed: int, count: int) -> tuple[np.ndarray, bool]:
        """The start positions of a whole batch whose rows continue their previous window; True if an epoch begins.

        Each row reads its own segment of the text, as many whole windows as fit; all rows end together. The segments do
        not cover the whole text; their common offset is drawn in each epoch, so that windows begin at other positions.
        """
        windows = (self.train_count - 1) // (count * self.context)
        if not windows:
            raise UserError(
                f"{count} rows of consecutive windows of {self.context} tokens are more than the training part of "
                f"{self.name} has ({self.train_count} tokens); lower --data.batch or --model.context, or set "
                "--data.order random"
            )
        epoch, number = divmod(step, windows)
        segment = windows * self.context
        offset = _draws(seed, epoch, 1, below=self.train_count - count * segment)
        return offset + np.arange(count) * segment + number * self.context, number == 0

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        """Part ``rank`` of the training batch of a step: ``size`` windows.

        The parts are slices of one batch of ``size * world`` windows, so the number of processes does not change the
        training data. With consecutive order, ``slots`` is set where the rows begin a segment, and None
        where they continue the previous batch.
        """
        if self.order == "random":
            starts, begins = self.offsets(step, seed=seed, count=size * world), False
        else:
            starts, begins = self._consecutive(step, seed=seed, count=size * world)
        windows = self._tokens.windows(starts[rank * size : (rank + 1) * size], self.context + 1)
        batch = self._batch(windows[:, :-1], windows[:, 1:])
        if not begins:
            return batch
        from regard.attention import Range  # not at the top: configs are read without torch

        return batch._replace(slots=Range(self.context))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """The validation part: over all ranks every token but the first is a target exactly once.

        All batches have the same shape, and all ranks the same number of them: the last ones are padded with ignored
        targets. Padding comes last in a row, so a causal model needs no slots for it.
        """
        return self._batches(self.parts.validation, size, rank, world, self.context)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """The test part, in the same way."""
        return self._batches(self.parts.test, size, rank, world, self.context)

    def sliding_batches(self, part: str, size: int, stride: int) -> Iterator[TextBatch]:
        """A part ("train", "validation", "test") in overlapping windows; the last ``stride`` of each are targets.

        Every target then has a context of at least context - stride tokens, except in the first window.
        """
        if not 1 <= stride <= self.context:
            raise UserError(f"a stride is at least 1 and at most the context, {self.context}; it is {stride}")
        return self._batches(self.parts._asdict()[part], size, 0, 1, stride)

    def _batches(self, part: TokenSpan, size: int, rank: int, world: int, stride: int) -> Iterator[TextBatch]:
        rows = min(part.targets, 1) + -(-max(part.targets - self.context, 0) // stride)
        place = np.arange(self.context)
        for first in range(0, rows, size * world):
            number = first + rank * size + np.arange(size)
            begins = number * stride  # within the part
            windows = self._tokens.windows(part.start + begins, self.context + 1)
            inside = begins[:, None] + place < part.targets
            counted = inside & ((number[:, None] == 0) | (place >= self.context - stride))
            counted &= number[:, None] < rows
            yield self._batch(np.where(inside, windows[:, :-1], 0), np.where(counted, windows[:, 1:], IGNORE_INDEX))

    def _batch(self, inputs: np.ndarray, targets: np.ndarray) -> TextBatch:
        import torch  # not at the top: configs are read without torch

        words = None
        if self._edges is not None:
            begins, ends = (edge[inputs] for edge in self._edges)
            goes_on = begins[:, 1:] & ends[:, :-1]
            words = np.concatenate((np.zeros_like(inputs[:, :1]), np.cumsum(~goes_on, axis=1)), axis=1)
            words = torch.from_numpy(words)
        read, wanted = (torch.from_numpy(np.ascontiguousarray(array)) for array in (inputs, targets))
        return TextBatch(read, wanted, words=words)


def _draws(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """The first ``count`` raw words of the generator for (seed, number), modulo ``below``."""
    words = 2**64
    generator = np.random.Philox(key=(seed % words) << 64 | number % words)
    return (generator.random_raw(count) % np.uint64(below)).astype(np.int64)
