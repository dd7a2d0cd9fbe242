"""Reading a text of any size, in one file or several, in chunks.

Errors name the position of the first byte that is not text.
"""

import codecs
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from regard.data.origins.cache import FileStats, forget, recall, remember, stat_files
from regard.data.origins.progress import ProgressLine
from regard.data.texts.formats import opened, records, unreadable
from regard.errors import UserError

_PIECE = 1 << 22  # bytes; the memory used is a small multiple of it

Piece = TypeVar("Piece", str, bytes)


class Summary(NamedTuple):
    """The identity of a text, used as a cache key."""

    sha256: str  # of its UTF-8 bytes
    length: int  # in characters; of raw bytes in bytes
    listing: str = ""  # of several files: a hash of their names and sizes


@dataclass(frozen=True)
class TextFile:
    """A UTF-8 text file, or several as one text; or its first ``limit`` characters (raw: bytes).

    Several files, and the records of one, have a separator between them; empty ones are ignored.
    """

    path: Path  # of the file; of several: the folder or pattern that the user gave
    limit: int | None = None
    memory: Path | None = None  # the cache of summaries; None: read the file every time
    members: tuple[Path, ...] = ()  # the files; none: the one at ``path``
    separator: str = "\n\n"
    root: Path = Path()  # names in the listing are relative to it, so that the folder may be moved
    field: str = "text"  # of records (.jsonl, .parquet): the one that holds the text

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files."""
        return self.members or (self.path,)

    def pieces(self) -> Iterator[str]:
        """The text in chunks of a few million characters."""
        with self._progress() as progress:
            files = (_decoded(file, self._chunks(file, progress)) for file in self.files)
            yield from _first(_joined(files, self.separator, "".join), self.limit)

    def raw_pieces(self) -> Iterator[bytes]:
        """The raw bytes in chunks of a few million, text or not."""
        with self._progress() as progress:
            files = (self._chunks(file, progress) for file in self.files)
            yield from _first(_joined(files, self.separator.encode(), b"".join), self.limit)

    def summary(self, raw: bool = False) -> Summary:
        """The summary of the text, or of the raw bytes, text or not; cached while the files are unchanged."""
        before, key = self._stat(), self._key(raw)
        known = None if self.memory is None else recall(self.memory, key, before)
        if known and tuple(known) == Summary._fields:
            return Summary(**known)
        digest, length = hashlib.sha256(), 0
        for piece in self.raw_pieces() if raw else self.pieces():
            digest.update(piece if isinstance(piece, bytes) else piece.encode())
            length += len(piece)
        if not length:
            what = "everything in" if self.members else "the file"
            raise UserError(f"{what} {self.path} is empty; give a file with text")
        summary = Summary(digest.hexdigest(), length, self._listing(before))
        if self.memory is not None:
            remember(self.memory, key, before, self._stat(), summary._asdict())
        return summary

    def forget(self) -> None:
        """Remove its summaries from the cache."""
        if self.memory is not None:
            for raw in (False, True):
                forget(self.memory, self._key(raw))

    def _key(self, raw: bool) -> str:
        files = [str(file.absolute()) for file in self.files]
        root = self.root.absolute() if self.members else ""
        return f"{'bytes' if raw else 'text'}|{self.limit}|{files}|{self.separator!r}|{self.field}|{root}"

    def _listing(self, now: FileStats) -> str:
        """``Summary.listing``."""
        if not self.members:
            return ""
        names = [Path(os.path.relpath(file, self.root)).as_posix() for file in self.members]
        return hashlib.sha256(repr(list(zip(names, now.sizes, strict=True))).encode()).hexdigest()

    def _chunks(self, path: Path, progress: ProgressLine) -> Iterator[bytes]:
        """A file's bytes in chunks."""
        found = records(path, self.field, progress)
        if found is not None:
            yield from _joined(([record] for record in found), self.separator.encode(), b"".join)
            return
        with opened(path, progress) as file:
            while chunk := file.read(_PIECE):
                yield chunk

    def _stat(self) -> FileStats:
        try:
            return stat_files(self.files)
        except OSError as error:
            raise unreadable(Path(error.filename or self.path), error) from error

    def _progress(self) -> ProgressLine:
        return ProgressLine(f"reading {self.path.name or self.path}", sum(self._stat().sizes))


def _first(pieces: Iterable[Piece], limit: int | None) -> Iterator[Piece]:
    """The first ``limit`` characters or bytes of the chunks; empty chunks are dropped."""
    left = limit
    for piece in pieces:
        if left is not None:
            piece = piece[:left]
            left -= len(piece)
        if piece:
            yield piece
        if left == 0:
            return


def _joined(
    files: Iterable[Iterable[Piece]], separator: Piece, join: Callable[[list[Piece]], Piece]
) -> Iterator[Piece]:
    """The files as one text, the separator between those that are not empty, in chunks of at least ``_PIECE``."""
    held: list[Piece] = []
    size, nothing, between = 0, separator[:0], separator[:0]
    for pieces in files:
        before = between
        for piece in filter(None, pieces):
            held += (before, piece)
            size += len(piece)
            before, between = nothing, separator
            if size >= _PIECE:
                yield join(held)
                held, size = [], 0
    yield join(held)


def _decoded(path: Path, chunks: Iterable[bytes]) -> Iterator[str]:
    """A file's text in chunks; a ``UserError`` names the first byte that is not text, and its position."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = lines = 0  # bytes decoded so far, and newlines among them
    for chunk in itertools.chain(chunks, [b""]):
        held = len(decoder.getstate()[0])  # bytes of a character that the previous chunk ended in
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise _not_text(path, "a NUL byte", done + held + nul, lines + chunk[:nul].count(b"\n"))
        try:
            piece = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line = lines + error.object[: error.start].count(b"\n")
            what = f"the byte 0x{error.object[error.start]:02X}, which is not UTF-8"
            raise _not_text(path, what, done + error.start, line) from None
        yield piece
        done += held + len(chunk) - len(decoder.getstate()[0])
        lines += piece.count("\n")


def _not_text(path: Path, what: str, position: int, line: int) -> UserError:
    return UserError(
        f"the file {path} is not text: {what} is at position {position} (line {line + 1}); "
        "give a UTF-8 text file, or convert this one; --data.tokenizer bytes takes any file"
    )
