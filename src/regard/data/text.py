"""Training on one text: the first part is trained on, the rest held out.

The batch of a step is a function of (seed, step, rank) and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regard.config import knob
from regard.data.base import DataConfig
from regard.data.batch import SKIP, TextBatch
from regard.data.cache import cache_folder
from regard.data.reading import TextFile
from regard.data.sources import find_source
from regard.data.tokenizer import CharactersConfig, Tokenizer, TokenizerConfig
from regard.data.tokens import Tokens, tokenize
from regard.errors import UserError


@dataclass(frozen=True)
class TextConfig(DataConfig, kind="text"):
    """A text file of the user's, or a source by name."""

    path: str | None = knob(None, "a text file to train on (UTF-8) instead of the source")
    source: str = knob("plays", "the text to fetch when no path is given")
    tokenizer: TokenizerConfig = field(default_factory=CharactersConfig, metadata={"help": "how text becomes tokens"})
    validation: float = knob(0.1, "the share of the text, at its end, held out for evaluation")
    batch: int = knob(12, "windows per step and process")
    limit: int | None = knob(None, "use only the first so many characters")

    def check(self) -> None:
        """Impossible values are errors before anything is fetched."""
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation is {self.validation}, but must be at least 0 and less than 1")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but a step needs at least 1 window")
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"limit is {self.limit}, but a text needs at least 2 characters")
        if self.path is None:
            try:
                find_source(self.source)
            except UserError as error:
                raise ValueError(str(error)) from None

    def build(self, context: int, cache: Path | None = None) -> TextData:
        """Fetch the text if need be, turn it into tokens if that was not done before, and split it."""
        self.check()  # a config made in Python was not loaded
        cache = cache or cache_folder()
        if self.path is None:
            name, (file, *_) = self.source, find_source(self.source).fetch(cache)
        else:
            name, file = self.path, Path(self.path).expanduser()
        tokens, tokenizer, summary = tokenize(TextFile(file, self.limit), self.tokenizer, cache)
        return TextData(tokens, tokenizer, context, self.validation, name=name, sha256=summary.sha256)


def prepare(config: TextConfig, context: int, cache: Path | None = None) -> TextData:
    """The data that a config describes, in windows of `context` tokens."""
    return config.build(context, cache)


class TextData:
    """The tokens of one text, split by position.

    Training windows lie within the first `train_count` tokens and validation windows within the rest; none
    crosses.
    """

    def __init__(
        self, tokens: Tokens, tokenizer: Tokenizer, context: int, validation: float, name: str, sha256: str
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.name = name
        self.sha256 = sha256  # of the text: a resumed run can see that it is still the same
        self._tokens = tokens
        self.train_count = int(len(tokens) * (1 - validation))
        held_out = len(tokens) - self.train_count
        #: How many targets the validation batches count: every token of the held-out part but its first.
        self.validation_count = max(held_out - 1, 0)
        if context < 1:
            raise UserError(f"the context is {context}, but must be at least 1")
        if self.train_count <= context:
            largest = self.train_count - 1
            fix = f"set --model.context {largest} or less, or give more text" if largest > 0 else "give more text"
            raise UserError(
                f"a context of {context} is longer than the training part of {name} ({self.train_count} of "
                f"{len(tokens)} tokens; a window needs one more than its context); {fix}"
            )
        if validation > 0 and not self.validation_count:
            raise UserError(
                f"the held-out part of {name} has {held_out} tokens, too few to evaluate on; give more text, "
                "or set --data.validation to 0 or to a larger share"
            )

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.tokenizer.size

    def __len__(self) -> int:
        """Tokens in all, held out ones included."""
        return len(self._tokens)

    def offsets(self, position: int, *, seed: int, count: int) -> np.ndarray:  # [count]
        """Where the windows of a global batch begin.

        The generator is counter-based and made anew, so there is no state to save or restore. Its raw words
        are used because numpy promises to keep those, but not what is derived from them, the same from
        version to version. (The remainder favours small offsets by less than one part in 10**7, even for a
        terabyte of text.)
        """
        words = 2**64
        generator = np.random.Philox(key=(seed % words) << 64 | position % words)
        return (generator.random_raw(count) % np.uint64(self.train_count - self.context)).astype(np.int64)

    def batch(self, position: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        """The training batch of step `position`: `size` windows for this rank.

        The ranks' batches are slices of one global batch of `size * world` windows, so runs whose global
        batches are equally large see the same text whatever their number of processes.
        """
        starts = self.offsets(position, seed=seed, count=size * world)[rank * size : (rank + 1) * size]
        windows = self._tokens.windows(starts, self.context + 1)
        return _batch(windows[:, :-1], windows[:, 1:])

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """All of the held-out part: over all ranks every target but the first is counted exactly once.

        Every batch has the same shape, and every rank equally many: what is missing at the end is filled
        with targets that are not counted. A causal model needs no slots for that, since the filling comes
        last in a row.
        """
        rows = -(-self.validation_count // self.context)
        for first in range(0, rows, size * world):
            begins = (first + rank * size + np.arange(size)) * self.context  # within the held-out part
            windows = self._tokens.windows(self.train_count + begins, self.context + 1)
            counted = begins[:, None] + np.arange(self.context) < self.validation_count
            yield _batch(np.where(counted, windows[:, :-1], 0), np.where(counted, windows[:, 1:], SKIP))


def _batch(inputs: np.ndarray, targets: np.ndarray) -> TextBatch:
    import torch  # here, so that reading a config needs no torch

    return TextBatch(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(np.ascontiguousarray(targets)))
