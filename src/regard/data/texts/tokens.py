"""Tokens on disk: written once in pieces, then mapped, so that a text of any size needs little memory."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy

from regard.config import dump
from regard.data.origins.cache import partial_folder, settle_folder
from regard.data.origins.progress import say
from regard.data.texts.text_file import Summary
from regard.data.tokenizers import Tokenizer, TokenizerConfig, load_tokenizer, regroup
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = "tokens 2"  # part of the key: change it when what is stored changes its meaning
_TOKENS, _TOKENIZER, _COUNTS = "tokens.npy", "tokenizer.json", "counts.json"
_MAPPED_LIMIT = 1 << 27  # bytes; a larger file is read window by window


class Text(Protocol):
    """A text that can be read piece by piece, as often as need be; `raw` are its bytes, whatever they mean."""

    @property
    def path(self) -> Path: ...

    def pieces(self) -> Iterator[str]: ...

    def summary(self) -> Summary: ...

    def raw_pieces(self) -> Iterator[bytes]: ...

    def raw_summary(self) -> Summary: ...


class Counts(NamedTuple):
    """How much text the tokens stand for, so that a loss per token can be told per byte or per character."""

    tokens: int
    characters: int  # of bytes that are no text: as many as `decode` shows
    bytes: int
    learned_from: int  # bytes, from the beginning, that decided what the tokenizer is

    @classmethod
    def read(cls, path: Path) -> Counts:
        """What `write` wrote; `ValueError` for anything else."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or list(found) != list(cls._fields):
            raise ValueError(f"{path} is damaged")
        if not all(type(count) is int and count >= 0 for count in found.values()):
            raise ValueError(f"{path} is damaged")
        return cls(**found)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self._asdict(), indent=2) + "\n", encoding="utf-8", newline="\n")


class Tokens:
    """A read-only sequence of tokens in an `.npy` file, with the counts that lie beside it.

    The file is mapped into memory if it is small. The pages of a mapped file count as this process's memory
    once they are touched (and the kernel maps a megabyte around each), so that random windows would bring in
    all of a large file in the end: its windows are read one by one, out of the system's cache.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            if npy.read_magic(file) != (1, 0):
                raise ValueError(f"{path} is not an .npy file of version 1.0")
            (self._length,), _, self._dtype = npy.read_array_header_1_0(file)
            self._start = file.tell()
            size = os.fstat(file.fileno()).st_size
            self.counts = Counts.read(path.with_name(_COUNTS))
            if self.counts.tokens != self._length:
                raise ValueError(f"{path} has {self._length} tokens and not {self.counts.tokens}")
            if self._dtype.hasobject or size != self._start + self._length * self._dtype.itemsize:
                raise ValueError(f"{path} is damaged")
            if size > _MAPPED_LIMIT and hasattr(os, "pread"):  # Windows has none, but trims mapped pages by itself
                self._tokens = None
                self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
            else:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._tokens = np.frombuffer(mapped, self._dtype, offset=self._start)

    def __len__(self) -> int:
        return self._length

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:  # [B] -> [B, length]
        """`length` tokens from each start; places past the end are 0."""
        found = np.zeros((len(starts), length), dtype=np.int64)
        for row, start in zip(found, starts.tolist(), strict=True):
            span = self._span(start, length)
            row[: len(span)] = span
        return found

    def _span(self, start: int, length: int) -> NDArray:
        """The tokens from `start` on, fewer than `length` at the end of the file."""
        if self._tokens is not None:
            return self._tokens[start : start + length]
        width = self._dtype.itemsize
        return np.frombuffer(os.pread(self._descriptor, length * width, self._start + start * width), self._dtype)


def tokenize(text: Text, config: TokenizerConfig, cache: Path) -> tuple[Tokens, Tokenizer, Summary]:
    """The tokens of a text and their tokenizer, from the cache if this text was seen before."""
    summary = text.raw_summary() if config.raw else text.summary()
    key = hashlib.sha256(f"{_FORMAT}|{sorted(dump(config).items())}|{summary}".encode()).hexdigest()[:32]
    folder = cache / "tokens" / key
    was_there = folder.exists()  # asked first: what is there and cannot be opened is damaged, not on its way
    if (kept := _open(folder)) is None:
        with partial_folder(cache) as partial:
            if was_there and _open(folder) is None:  # out of the way, since no folder is renamed onto another
                with suppress(FileNotFoundError):
                    folder.rename(partial / "damaged")
            made = partial / "made"
            made.mkdir()
            tokenizer = config.build(text.pieces())
            tokenizer.save(made / _TOKENIZER)
            counts = _write(made / _TOKENS, text, config, tokenizer, summary)
            counts.write(made / _COUNTS)
            if 0 < counts.learned_from < counts.bytes:
                megabytes = f"{counts.learned_from / 1e6:,.0f} of {counts.bytes / 1e6:,.0f} MB"
                say(f"the vocabulary is learned from the first {megabytes} (--data.tokenizer.megabytes)")
            settle_folder(made, folder)
        kept = _open(folder)
    if kept is None:
        raise UserError(f"the tokens in {folder} cannot be read back; check that disk, or set REGARD_CACHE to another")
    return *kept, summary


def _open(folder: Path) -> tuple[Tokens, Tokenizer] | None:
    """What the cache holds there; None if nothing, or nothing sound."""
    try:
        return Tokens(folder / _TOKENS), load_tokenizer(folder / _TOKENIZER)
    except (OSError, ValueError, UserError):
        return None


def _write(path: Path, text: Text, config: TokenizerConfig, tokenizer: Tokenizer, summary: Summary) -> Counts:
    """Encode piece by piece. The text is read anew here, so it must still be what `summary` saw."""
    dtype = np.min_scalar_type(max(tokenizer.size - 1, 0))
    digest = hashlib.sha256()
    tokens = characters = size = 0
    with open(path, "wb") as file:
        file.write(_header(dtype, 0))  # their number is known at the end
        for ids, length, raw in _encoded(text, config, tokenizer):
            file.write(ids.astype(dtype).tobytes())
            digest.update(raw)
            tokens, characters, size = tokens + len(ids), characters + length, size + len(raw)
        file.seek(0)
        file.write(_header(dtype, tokens))
    if digest.hexdigest() != summary.sha256:
        raise _changed(text)
    return Counts(tokens, characters, size, config.learns_from(size))


def _encoded(text: Text, config: TokenizerConfig, tokenizer: Tokenizer) -> Iterator[tuple[NDArray, int, bytes]]:
    """Piece by piece the token numbers, how many characters they stand for, and the bytes."""
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
        except UserError:
            raise _changed(text) from None
        yield ids, len(piece), piece.encode()


def _header(dtype: np.dtype, count: int) -> bytes:
    """The header of an `.npy` file, equally long for every count: numpy leaves room in it for that."""
    header = io.BytesIO()
    shape = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(header, shape)
    return header.getvalue()


def _changed(text: Text) -> UserError:
    return UserError(f"{text.path} changed while it was being read; start again when it is finished")
