"""Tokens on disk: written once in pieces, then mapped, so that a text of any size needs little memory."""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from regard.config import dump
from regard.data.cache import partial_folder, settle_folder
from regard.data.reading import Summary, TextFile
from regard.data.tokenizer import Tokenizer, TokenizerConfig, load_tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = "tokens 1"  # part of the key: change it when what is stored changes its meaning
_MAPPED_LIMIT = 1 << 27  # bytes; a larger file is read window by window


class Tokens:
    """A read-only sequence of tokens in an `.npy` file.

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


def tokenize(text: TextFile, config: TokenizerConfig, cache: Path) -> tuple[Tokens, Tokenizer, Summary]:
    """The tokens of a text and their tokenizer, from the cache if this text was seen before."""
    summary = text.summary()
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
            tokenizer.save(made / "tokenizer.json")
            _write(made / "tokens.npy", text, tokenizer, summary)
            settle_folder(made, folder)
        kept = _open(folder)
    if kept is None:
        raise UserError(f"the tokens in {folder} cannot be read back; check that disk, or set REGARD_CACHE to another")
    return *kept, summary


def _open(folder: Path) -> tuple[Tokens, Tokenizer] | None:
    """What the cache holds there; None if nothing, or nothing sound."""
    try:
        return Tokens(folder / "tokens.npy"), load_tokenizer(folder / "tokenizer.json")
    except (OSError, ValueError, UserError):
        return None


def _write(path: Path, text: TextFile, tokenizer: Tokenizer, summary: Summary) -> None:
    """Encode piece by piece. The file is read anew here, so it must still be what `summary` saw."""
    dtype = np.min_scalar_type(max(tokenizer.size - 1, 0))
    changed = UserError(f"the file {text.path} changed while it was being read; start again when it is finished")
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        npy.write_array_header_1_0(
            file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (summary.length,)}
        )
        for piece in text.pieces():
            try:
                file.write(tokenizer.encode(piece).astype(dtype).tobytes())
            except UserError:
                raise changed from None
            digest.update(piece.encode())
    if digest.hexdigest() != summary.sha256:
        raise changed
