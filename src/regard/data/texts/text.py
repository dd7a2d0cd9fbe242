"""Language modeling data: windows of a text. The batch of a step is a pure function of (seed, step, rank)."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data, DataConfig, TextBatch
from regard.data.origins.cache import cache_folder
from regard.data.origins.progress import say
from regard.data.sources import find_source
from regard.data.split import Split, TokenSpan, check_fractions, split
from regard.data.texts.text_file import TextFile
from regard.data.texts.text_files import find_texts, own_parts, skipped_words
from regard.data.texts.tokens import JoinedTokens, tokenize
from regard.data.tokenizers import CharactersConfig, Tokenizer, TokenizerConfig
from regard.errors import UserError

_CHUNK = 1 << 20  # tokens


@dataclass(frozen=True)
class TextConfig(DataConfig, kind="text"):
    """The user's own text, or a built-in source."""

    path: str | None = option(None, "a text file (UTF-8), a folder of them or a 'pattern*.txt', instead of the source")
    validation_path: str | None = option(None, "the same for the validation part, instead of a fraction of the text")
    test_path: str | None = option(None, "the same for the test part, instead of a fraction of the text")
    source: str = option("plays", "the text to fetch when no path is given; `regard data` lists them")
    tokenizer: TokenizerConfig = field(default_factory=CharactersConfig, metadata={"help": "the tokenizer"})
    validation: float = option(0.1, "the fraction of the text held out for evaluation")
    test: float = option(0.0, "the fraction of the text, at its end, held out for a final test")
    batch: int = option(12, "windows per micro-batch; a step has one for each process and each accumulation")
    order: Literal["random", "consecutive"] = option(
        "random", "random windows, or each row continues where it ended in the previous batch"
    )
    limit: int | None = option(None, "train on the first characters only, this many (bytes, with the bytes tokenizer)")
    separator: str = option("\n\n", "the text between two files, or between the records of one")
    words: bool = option(False, "give the words' boundaries with each batch, for --task.whole_words")
    field: str = option("text", "the field of a .jsonl file, or the column of a .parquet file, that holds the text")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but a step needs at least 1 window")
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"limit is {self.limit}, but a text needs at least 2 characters")
        if self.path is None and find_source(self.source).languages:
            raise ValueError(f"source '{self.source}' is pairs of sentences and no text; use --data pairs")
        if self.path is None and (form := find_source(self.source).labels):
            raise ValueError(f"source '{self.source}' is labelled text; use --data {form}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> "TextData":
        """Fetch, tokenize and split the text; downloads and tokens are cached. Without a tokenizer one is learned."""
        self.check()  # a config made in Python was not loaded
        cache = cache or cache_folder()
        texts, name = self.texts(cache), self.path or self.source
        tokens, hashes = [], []
        for text in texts.values():  # training first: the tokenizer is learned from it
            try:
                some, tokenizer, summary = tokenize(text, self.tokenizer, cache, tokenizer)
            except UserError:
                text.forget()  # if its cached summary is wrong, the next start reads the whole text
                raise
            tokens.append(some)
            hashes.append(summary.sha256)
        assert tokenizer is not None
        shares = {"validation": self.validation, "test": self.test}
        parts = split(len(tokens[0]), *(0 if key in texts else share for key, share in shares.items()))
        joined = JoinedTokens(tokens)
        spans = {key: TokenSpan(*map(int, joined.starts[n : n + 2])) for n, key in enumerate(texts) if n}
        parts = parts._replace(**spans)
        _check_parts(parts, context, name, [key for key, share in shares.items() if share > 0 or key in texts])
        sha256 = hashes[0] if len(hashes) == 1 else hashlib.sha256(repr((list(texts), hashes)).encode()).hexdigest()
        options = {"name": name, "sha256": sha256, "order": self.order, "words": self.words}
        return TextData(joined, tokenizer, context, parts, **options)

    def texts(self, cache: Path) -> dict[str, TextFile]:
        """The text to train on, and the validation and test parts that are separate texts; to be read in chunks."""
        if self.path is None:
            texts = {"train": TextFile(find_source(self.source).fetch(cache), self.limit, cache)}
        else:
            texts = self._given(self.path, cache)
        for key, path in (("validation", self.validation_path), ("test", self.test_path)):
            if path is not None:
                texts |= self._given(path, cache, key)
        return {key: texts[key] for key in Split._fields if key in texts}

    def _given(self, given: str, cache: Path, part: str = "train") -> dict[str, TextFile]:
        """The text of a path by part. Only a folder given for training may be divided by file names."""
        found, path = find_texts(given), Path(given).expanduser()
        root = path if path.is_dir() else Path(os.path.commonpath([file.parent for file in found.files]))
        parts = own_parts(path, found.files) if path.is_dir() and part == "train" else {}

        def text(key: str, files: tuple[Path, ...]) -> TextFile:
            limit = self.limit if key == "train" else None
            named = files[0] if key in parts and len(files) == 1 else path
            members = () if files == (path,) else files
            return TextFile(named, limit, cache, members, self.separator, root, self.field)

        if found.files != (path,):
            say(f"{given}: {_described(parts, given) or _count(found.files)}{skipped_words(found.skipped)}")
        return {key: text(key, files) for key, files in (parts or {part: found.files}).items()}

    def evaluated(self, path: str, context: int, tokenizer: Tokenizer, cache: Path | None = None) -> "TextData":
        """Another text with the tokenizer of a run, all of it as the test part."""
        cache = cache or cache_folder()
        (text,) = self._given(path, cache, "test").values()
        tokens, tokenizer, summary = tokenize(text, self.tokenizer, cache, tokenizer)
        start, whole = TokenSpan(0, 0), TokenSpan(0, len(tokens))
        if not whole.targets:
            raise UserError(f"{path} has {whole.size} tokens, too few to evaluate on; give more text")
        parts = Split(start, start, whole)
        return TextData(JoinedTokens([tokens]), tokenizer, context, parts, name=path, sha256=summary.sha256)


def _described(parts: dict[str, tuple[Path, ...]], given: str) -> str:
    """The parts of a folder, in words; empty without parts."""
    if not parts:
        return ""
    words = [
        f"{files[0].name if len(files) == 1 else _count(files)} for {part.replace('train', 'training')}"
        for part, files in parts.items()
    ]
    return f"{', '.join(words)}, by their names (as one text: --data.path '{given.rstrip('/')}/**')"


def _check_parts(parts: Split, context: int, name: str, wanted: list[str]) -> None:
    """Refuse a training part shorter than a window, and a held-out part without a target."""
    size = parts.train.size
    if size <= context:
        fix = f"set --model.context {size - 1} or less, or give more text" if size > 1 else "give more text"
        raise UserError(
            f"a context of {context} is longer than the training part of {name} ({size} of "
            f"{max(part.stop for part in parts)} tokens; a window needs one more than its context); {fix}"
        )
    for key in wanted:
        part = parts._asdict()[key]
        if not part.targets:
            raise UserError(
                f"the {key} part of {name} has {part.size} tokens, too few to evaluate on; give more text, "
                f"or set --data.{key} to 0 or to a larger share"
            )


def _count(files: tuple[Path, ...]) -> str:
    return f"{len(files):,} file{'s' if len(files) > 1 else ''}"


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
