"""Training on a text: the first part is trained on, the rest held out.

The batch of a step is a function of (seed, step, rank) and of nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from regard.config import option
from regard.data.base import Data, DataConfig
from regard.data.batch import IGNORE_INDEX, TextBatch
from regard.data.origins.cache import cache_folder
from regard.data.origins.progress import say
from regard.data.sources import find_source
from regard.data.texts.split import Split, TokenSpan, exact, split
from regard.data.texts.text_file import TextFile
from regard.data.texts.text_files import TextFiles, find_texts, skipped_words
from regard.data.texts.tokens import Tokens, tokenize
from regard.data.tokenizers import CharactersConfig, Tokenizer, TokenizerConfig
from regard.errors import UserError

_AT_ONCE = 1 << 20  # tokens looked at together


@dataclass(frozen=True)
class TextConfig(DataConfig, kind="text"):
    """A text of the user's, or a source by name."""

    path: str | None = option(None, "a text file (UTF-8), a folder of them or a 'pattern*.txt', instead of the source")
    source: str = option("plays", "the text to fetch when no path is given; `regard data` lists them")
    tokenizer: TokenizerConfig = field(default_factory=CharactersConfig, metadata={"help": "how text becomes tokens"})
    validation: float = option(0.1, "the share of the text, after what is trained on, held out for evaluation")
    test: float = option(0.0, "the share of the text, at its very end, kept for a last evaluation")
    batch: int = option(12, "windows per step and process")
    order: Literal["random", "consecutive"] = option(
        "random", "windows drawn at random, or each row going on where it ended in the batch before"
    )
    limit: int | None = option(None, "use only the first so many characters (bytes, where a token is a byte)")
    separator: str = option("\n\n", "what stands between two files, where the path names several")

    def check(self) -> None:
        """Impossible values are errors before anything is fetched."""
        for name in ("validation", "test"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {share}, but must be at least 0 and less than 1")
        if exact(self.validation) + exact(self.test) >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} together leave nothing to train on")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but a step needs at least 1 window")
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"limit is {self.limit}, but a text needs at least 2 characters")
        if self.path is None:
            try:
                source = find_source(self.source)
            except UserError as error:
                raise ValueError(str(error)) from None
            if source.languages:
                raise ValueError(f"source '{self.source}' is pairs of sentences and no text; use --data pairs")

    def build(self, context: int, cache: Path | None = None) -> TextData:
        """Fetch the text if need be, turn it into tokens if that was not done before, and split it."""
        self.check()  # a config made in Python was not loaded
        cache = cache or cache_folder()
        text = self.text(cache)
        try:
            tokens, tokenizer, summary = tokenize(text, self.tokenizer, cache)
        except UserError:
            text.forget()  # should what is remembered of the text be wrong, the next start reads all of it
            raise
        parts, name = split(len(tokens), self.validation, self.test), self.path or self.source
        data = TextData(tokens, tokenizer, context, parts, name=name, sha256=summary.sha256, order=self.order)
        for key, share, part in (("validation", self.validation, parts.validation), ("test", self.test, parts.test)):
            if share > 0 and not part.targets:
                raise UserError(
                    f"the {key} part of {name} has {part.size} tokens, too few to evaluate on; give more text, "
                    f"or set --data.{key} to 0 or to a larger share"
                )
        return data

    def text(self, cache: Path) -> TextFile:
        """The text itself, to be read in pieces."""
        if self.path is None:
            file, *_ = find_source(self.source).fetch(cache)
            return TextFile(file, self.limit, cache)
        found, path = find_texts(self.path), Path(self.path).expanduser()
        if found.files == (path,):
            return TextFile(path, self.limit, cache)
        count = f"{len(found.files):,} file{'s' if len(found.files) > 1 else ''}"
        say(f"{self.path}: {count}{skipped_words(found.skipped)}")
        root = path if path.is_dir() else Path(os.path.commonpath([file.parent for file in found.files]))
        return TextFiles(path, self.limit, cache, found.files, self.separator, root)


def prepare(config: TextConfig, context: int, cache: Path | None = None) -> TextData:
    """The data that a config describes, in windows of `context` tokens."""
    return config.build(context, cache)


class TextData(Data[TextBatch]):
    """The tokens of one text, split by position.

    The windows of a part lie within the part: none crosses a border.
    """

    tokenizer: Tokenizer
    vocabulary: int
    sha256: str
    validation_count: int
    test_count: int

    def __init__(
        self,
        tokens: Tokens,
        tokenizer: Tokenizer,
        context: int,
        parts: Split,
        *,
        name: str,
        sha256: str,
        order: Literal["random", "consecutive"] = "random",
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.size
        self.order = order
        self.context = context
        self.name = name
        self.sha256 = sha256  # of the text: a resumed run can see that it is still the same
        self.parts = parts
        self._tokens = tokens
        self.train_count = parts.train.size
        #: How many targets the validation and test batches count: every token of their part but its first.
        self.validation_count = parts.validation.targets
        self.test_count = parts.test.targets
        if context < 1:
            raise UserError(f"the context is {context}, but must be at least 1")
        if self.train_count <= context:
            largest = self.train_count - 1
            fix = f"set --model.context {largest} or less, or give more text" if largest > 0 else "give more text"
            raise UserError(
                f"a context of {context} is longer than the training part of {name} ({self.train_count} of "
                f"{len(tokens)} tokens; a window needs one more than its context); {fix}"
            )

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which as many tokens are seen as the training part has."""
        return self.train_count / (size * world * self.context)

    def amount(self, part: str) -> tuple[int, int]:
        """How many characters and bytes the targets of that part stand for."""
        chosen: TokenSpan = getattr(self.parts, part)
        stream, characters, size = self.tokenizer.stream(), 0, 0
        for start in range(chosen.start + 1, chosen.stop, _AT_ONCE):
            ids = self._tokens.windows(np.array([start]), min(_AT_ONCE, chosen.stop - start))[0]
            characters += len(stream.feed(ids.tolist()))
            size += int(self.tokenizer.widths[ids].sum())
        return characters + len(stream.end()), size

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
        return _draws(seed, position, count, below=self.train_count - self.context)

    def turn(self, position: int, count: int) -> tuple[int, int, int]:
        """With `consecutive` order and `count` rows: which time through the text, which window of it, of how many.

        Each row has a stretch of the text to itself, as many whole windows as fit; all rows reach its end together.
        """
        windows = (self.train_count - 1) // (count * self.context)
        if not windows:
            raise UserError(
                f"{count} rows of consecutive windows of {self.context} tokens are more than the training part of "
                f"{self.name} has ({self.train_count} tokens); lower --data.batch or --model.context, or set "
                "--data.order random"
            )
        return *divmod(position, windows), windows

    def consecutive(self, position: int, *, seed: int, count: int) -> np.ndarray:  # [count]
        """Where the windows of a global batch begin, each being what follows the same row's window before.

        What is left over of the text lies before the first row's stretch or after the last one's: how much of it
        before is drawn anew each time through, so that windows are not cut at the same places every time.
        """
        time, number, windows = self.turn(position, count)
        stretch = windows * self.context
        shift = _draws(seed, time, 1, below=self.train_count - count * stretch)
        return shift + np.arange(count) * stretch + number * self.context

    def batch(self, position: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        """The training batch of step `position`: `size` windows for this rank.

        The ranks' batches are slices of one global batch of `size * world` windows, so runs whose global
        batches are equally large see the same text whatever their number of processes. With `consecutive`
        order slots are given where rows begin a stretch, and not where they go on from the batch before.
        """
        places = self.offsets if self.order == "random" else self.consecutive
        starts = places(position, seed=seed, count=size * world)[rank * size : (rank + 1) * size]
        windows = self._tokens.windows(starts, self.context + 1)
        batch = _batch(windows[:, :-1], windows[:, 1:])
        if self.order == "random" or self.turn(position, size * world)[1]:
            return batch
        from regard.attention import Range  # here, so that reading a config needs no torch

        return batch._replace(slots=Range(self.context))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """All of the validation part: over all ranks every target but the first is counted exactly once.

        Every batch has the same shape, and every rank equally many: what is missing at the end is filled
        with targets that are not counted. A causal model needs no slots for that, since the filling comes
        last in a row.
        """
        return self._batches(self.parts.validation, size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """All of the test part, in the same way."""
        return self._batches(self.parts.test, size, rank, world)

    def sliding_batches(self, part: str, size: int, stride: int) -> Iterator[TextBatch]:
        """The part of that name ("train", "validation", "test") in windows that overlap; each counts its last `stride`.

        Every target then has at least context - stride tokens before it, but for those of the first window.
        """
        if not 1 <= stride <= self.context:
            raise UserError(f"a stride is at least 1 and at most the context, {self.context}; it is {stride}")
        return self._batches(getattr(self.parts, part), size, 0, 1, stride)

    def _batches(
        self, part: TokenSpan, size: int, rank: int, world: int, stride: int | None = None
    ) -> Iterator[TextBatch]:
        stride = self.context if stride is None else stride
        rows = min(part.targets, 1) + -(-max(part.targets - self.context, 0) // stride)
        place = np.arange(self.context)
        for first in range(0, rows, size * world):
            number = first + rank * size + np.arange(size)
            begins = number * stride  # within the part
            windows = self._tokens.windows(part.start + begins, self.context + 1)
            inside = begins[:, None] + place < part.targets
            counted = inside & ((number[:, None] == 0) | (place >= self.context - stride))
            counted &= number[:, None] < rows
            yield _batch(np.where(inside, windows[:, :-1], 0), np.where(counted, windows[:, 1:], IGNORE_INDEX))


def _draws(seed: int, number: int, count: int, below: int) -> np.ndarray:
    """The first `count` raw words of a generator of its own for (seed, number), modulo `below`."""
    words = 2**64
    generator = np.random.Philox(key=(seed % words) << 64 | number % words)
    return (generator.random_raw(count) % np.uint64(below)).astype(np.int64)


def _batch(inputs: np.ndarray, targets: np.ndarray) -> TextBatch:
    import torch  # here, so that reading a config needs no torch

    return TextBatch(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(np.ascontiguousarray(targets)))
