"""Which text: the user's own files, or a built-in source."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.config import option
from regard.data.base import DataConfig
from regard.data.origins.cache import cache_folder
from regard.data.origins.progress import say
from regard.data.sources import find_source
from regard.data.split import Split, TokenSpan, check_fractions, split
from regard.data.texts.text import TextData
from regard.data.texts.text_file import TextFile
from regard.data.texts.text_files import find_texts, own_parts, skipped_words
from regard.data.texts.tokens import JoinedTokens, tokenize
from regard.data.tokenizers import CharactersConfig, Tokenizer, TokenizerConfig
from regard.errors import UserError


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

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> TextData:
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

    def evaluated(self, path: str, context: int, tokenizer: Tokenizer, cache: Path | None = None) -> TextData:
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
