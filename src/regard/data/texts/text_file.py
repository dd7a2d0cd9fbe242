"""Reading a text of any size in chunks; errors name the position of the first byte that is not text."""

from __future__ import annotations

import codecs
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from regard.data.origins.file_facts import FileStats, forget, recall, remember, stat_files
from regard.data.origins.progress import ProgressLine
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
    """A UTF-8 text file, or its first ``limit`` characters (raw: bytes)."""

    path: Path
    limit: int | None = None
    memory: Path | None = None  # the cache of summaries; None: read the file every time

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files."""
        return (self.path,)

    def pieces(self) -> Iterator[str]:
        """The text in chunks of a few million characters."""
        with self._progress() as progress:
            yield from first(self._texts(progress), self.limit)

    def raw_pieces(self) -> Iterator[bytes]:
        """The raw bytes in chunks of a few million, text or not."""
        with self._progress() as progress:
            yield from first(self._chunks(progress), self.limit)

    def summary(self) -> Summary:
        """The summary of the text; cached while the file is unchanged."""
        return self._summed("text", self.pieces, str.encode)

    def raw_summary(self) -> Summary:
        """The summary of the raw bytes, text or not."""
        return self._summed("bytes", self.raw_pieces, bytes)

    def forget(self) -> None:
        """Remove its summaries from the cache."""
        if self.memory is not None:
            for kind in ("text", "bytes"):
                forget(self.memory, self._key(kind))

    def _texts(self, progress: ProgressLine) -> Iterator[str]:
        return decoded(self.path, progress)

    def _chunks(self, progress: ProgressLine) -> Iterator[bytes]:
        return chunks(self.path, progress)

    def _listing(self, now: FileStats) -> str:
        """``Summary.listing``."""
        return ""

    def _key(self, kind: str) -> str:
        return f"{kind}|{self.limit}|{[str(file.absolute()) for file in self.files]}"

    def _summed(self, kind: str, pieces: Callable[[], Iterable[Piece]], encoded: Callable[[Piece], bytes]) -> Summary:
        before = self._stat()
        known = None if self.memory is None else recall(self.memory, self._key(kind), before)
        if known and tuple(known) == Summary._fields:
            return Summary(**known)
        digest, length = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(encoded(piece))
            length += len(piece)
        if not length:
            what = "the file" if self.files == (self.path,) else "everything in"
            raise UserError(f"{what} {self.path} is empty; give a text file with --data.path FILE")
        summary = Summary(digest.hexdigest(), length, self._listing(before))
        if self.memory is not None:
            remember(self.memory, self._key(kind), before, self._stat(), summary._asdict())
        return summary

    def _stat(self) -> FileStats:
        try:
            return stat_files(self.files)
        except OSError as error:
            raise unreadable(Path(error.filename or self.path), error) from error

    def _progress(self) -> ProgressLine:
        return ProgressLine(f"reading {self.path.name or self.path}", sum(self._stat().sizes))


def first(pieces: Iterable[Piece], limit: int | None) -> Iterator[Piece]:
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


def chunks(path: Path, progress: ProgressLine) -> Iterator[bytes]:
    """A file's bytes in chunks."""
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_PIECE):
                progress.advance(len(chunk))
                yield chunk
    except OSError as error:
        raise unreadable(path, error) from error


def decoded(path: Path, progress: ProgressLine) -> Iterator[str]:
    """A file's text in chunks; a ``UserError`` names the first byte that is not text, and its position."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = lines = 0  # bytes decoded so far, and newlines among them
    for chunk in itertools.chain(chunks(path, progress), [b""]):
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


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"there is no file {path}; check the path given with --data.path")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{path} is a folder; give one text file with --data.path FILE")
    return UserError(f"cannot read {path}: {error.strerror or error}")


def _not_text(path: Path, what: str, position: int, line: int) -> UserError:
    return UserError(
        f"the file {path} is not text: {what} is at position {position} (line {line + 1}); "
        "give a UTF-8 text file, or convert this one; --data.tokenizer bytes takes any file"
    )


def gathered(pieces: Iterable[Piece], join: Callable[[list[Piece]], Piece]) -> Iterator[Piece]:
    """The same text in chunks of at least ``_PIECE``, also for many small files."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield join(held)
            held, size = [], 0
    yield join(held)
