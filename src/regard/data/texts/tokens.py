"""Token files: written once in chunks, then memory-mapped, so that a text of any size needs little memory."""

import codecs
import hashlib
import io
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from regard.config import dump
from regard.data.origins.cache import cached, partial_folder
from regard.data.origins.progress import say
from regard.data.texts.text_file import Summary, TextFile
from regard.data.tokenizers import Tokenizer, TokenizerConfig, load_tokenizer, regroup
from regard.errors import UserError

_FORMAT = "tokens 2"  # part of the key: change it when the format changes
_TOKENS, _TOKENIZER, _COUNTS = "tokens.npy", "tokenizer.json", "counts.json"
_MAPPED_LIMIT = 1 << 27  # bytes; a larger file is read window by window


class Counts(NamedTuple):
    """The size of the encoded text, to convert a loss per token to one per byte or character."""

    tokens: int
    characters: int  # of bytes that are not text: as many as `decode` returns
    bytes: int
    learned_from: int  # bytes at the beginning that the tokenizer was learned from; 0: from another text

    @classmethod
    def read(cls, path: Path) -> "Counts":
        """Read what ``write`` wrote; ``ValueError`` for anything else."""
        found = json.loads(path.read_text(encoding="utf-8"))
        keys = list(found) == list(cls._fields)
        if not keys or not all(type(count) is int and count >= 0 for count in found.values()):
            raise ValueError(f"{path} is damaged")
        return cls(**found)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self._asdict(), indent=2) + "\n", encoding="utf-8", newline="\n")


class Tokens:
    """A read-only sequence of tokens in an `.npy` file, with its ``Counts``.

    A small file is memory-mapped. Pages of a mapped file count as this process's memory once they are accessed (and the
    kernel maps a megabyte around each), so random windows would finally load all of a large file: its windows are read
    one by one instead, from the page cache.
    """

    def __init__(self, path: Path) -> None:
        """``ValueError`` or ``OSError`` if a file is missing or damaged."""
        mapped = np.load(path, mmap_mode="r")
        self.counts = Counts.read(path.with_name(_COUNTS))
        size = path.stat().st_size
        if mapped.shape != (self.counts.tokens,) or mapped.offset + mapped.nbytes != size:
            raise ValueError(f"{path} is damaged")
        self._start, self._dtype = mapped.offset, mapped.dtype
        self._tokens = np.asarray(mapped)
        self._descriptor = None
        if size > _MAPPED_LIMIT and hasattr(os, "pread"):  # not on Windows, which trims mapped pages itself
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return len(self._tokens)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:  # [B] -> [B, length]
        """``length`` tokens from each start; positions past the end are 0."""
        found = np.zeros((len(starts), length), dtype=np.int64)
        for row, start in zip(found, starts.tolist(), strict=True):
            span = self._span(start, length)
            row[: len(span)] = span
        return found

    def _span(self, start: int, length: int) -> NDArray:
        """The tokens from ``start`` on, fewer than ``length`` at the end of the file."""
        if self._descriptor is None:
            return self._tokens[start : start + length]
        width = self._dtype.itemsize
        return np.frombuffer(os.pread(self._descriptor, length * width, self._start + start * width), self._dtype)


class JoinedTokens:
    """The tokens of several texts, one after another. No window crosses from one to the next: the rest of it is 0."""

    def __init__(self, texts: Sequence[Tokens]) -> None:
        self._texts = texts
        self.starts = np.cumsum([0, *map(len, texts)])  # [texts + 1]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:  # [B] -> [B, length]
        """``length`` tokens from each start; positions past the end of the start's text are 0."""
        found = np.zeros((len(starts), length), dtype=np.int64)
        number = np.searchsorted(self.starts[1:-1], starts, side="right")
        for index, text in enumerate(self._texts):
            rows = number == index
            found[rows] = text.windows(starts[rows] - self.starts[index], length)
        return found


def tokenize(
    text: TextFile, config: TokenizerConfig, cache: Path, given: Tokenizer | None = None
) -> tuple[Tokens, Tokenizer, Summary]:
    """The tokens of a text and their tokenizer, from the cache if possible.

    The tokenizer is learned from the text, unless it is given.
    """
    summary = text.summary(config.raw)
    key = f"{_FORMAT}|{sorted(dump(config).items())}|{summary}" + ("" if given is None else _digest(given, cache))
    folder = cache / "tokens" / hashlib.sha256(key.encode()).hexdigest()[:32]

    def write(made: Path) -> None:
        tokenizer = given or config.build(text.pieces())
        tokenizer.save(made / _TOKENIZER)
        counts = _write(made / _TOKENS, text, config, tokenizer, summary, given is None)
        counts.write(made / _COUNTS)
        if 0 < counts.learned_from < counts.bytes:
            megabytes = f"{counts.learned_from / 1e6:,.0f} of {counts.bytes / 1e6:,.0f} MB"
            say(f"the vocabulary is learned from the first {megabytes} (--data.tokenizer.megabytes)")

    return *cached(folder, cache, _open, write), summary


def _digest(tokenizer: Tokenizer, cache: Path) -> str:
    with partial_folder(cache) as partial:
        tokenizer.save(partial / _TOKENIZER)
        return hashlib.sha256((partial / _TOKENIZER).read_bytes()).hexdigest()


def _open(folder: Path) -> tuple[Tokens, Tokenizer] | None:
    """The content of a cache folder; None if it is missing or damaged."""
    try:
        return Tokens(folder / _TOKENS), load_tokenizer(folder / _TOKENIZER)
    except (OSError, ValueError, UserError):
        return None


def _write(
    path: Path, text: TextFile, config: TokenizerConfig, tokenizer: Tokenizer, summary: Summary, learned: bool
) -> Counts:
    """Encode the text chunk by chunk. It is read again here, so its hash is compared with ``summary``."""
    dtype = np.min_scalar_type(max(tokenizer.size - 1, 0))
    digest = hashlib.sha256()
    tokens = characters = size = 0
    with open(path, "wb") as file:
        file.write(_header(dtype, 0))  # the count is known at the end
        for ids, length, raw in _encoded(text, config, tokenizer, learned):
            file.write(ids.astype(dtype).tobytes())
            digest.update(raw)
            tokens, characters, size = tokens + len(ids), characters + length, size + len(raw)
        file.seek(0)
        file.write(_header(dtype, tokens))
    if digest.hexdigest() != summary.sha256:
        raise _changed(text)
    return Counts(tokens, characters, size, config.learns_from(size) if learned else 0)


def _encoded(
    text: TextFile, config: TokenizerConfig, tokenizer: Tokenizer, learned: bool
) -> Iterator[tuple[NDArray, int, bytes]]:
    """For each chunk the token ids, the number of characters, and the bytes."""
    encode: Any = tokenizer.encode
    if config.raw:
        shown = codecs.getincrementaldecoder("utf-8")("replace")
        for raw in text.raw_pieces():
            yield encode(raw), len(shown.decode(raw)), raw
        yield encode(b""), len(shown.decode(b"", final=True)), b""
        return
    for piece in regroup(text.pieces(), tokenizer.cut):
        try:
            ids = encode(piece)
        except UserError as error:
            if learned:
                raise _changed(text) from None
            fix = "every tokenizer but `characters` takes any text: train with --data.tokenizer bpe"
            raise UserError(f"{text.path} has what the training text lacks: {error}; {fix}") from None
        yield ids, len(piece), piece.encode()


def _header(dtype: np.dtype, count: int) -> bytes:
    """The header of an `.npy` file; numpy pads it, so its length is the same for every count."""
    header = io.BytesIO()
    shape = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(header, shape)
    return header.getvalue()


def _changed(text: TextFile) -> UserError:
    return UserError(f"{text.path} changed while it was being read; start again when it is finished")
