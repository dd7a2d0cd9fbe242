"""Reading a text of any size in pieces, and saying exactly where a file stops being text."""

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

_PIECE = 1 << 22  # bytes; what is held at a time is a small multiple of it

Piece = TypeVar("Piece", str, bytes)


class Summary(NamedTuple):
    """What tells one text from another: what is kept of a text is kept under its summary."""

    sha256: str  # of its UTF-8 bytes
    length: int  # in characters; of raw bytes in bytes
    listing: str = ""  # of several files: a hash of their names and sizes


@dataclass(frozen=True)
class TextFile:
    """A UTF-8 text file, or its first `limit` characters; raw, its first `limit` bytes."""

    path: Path
    limit: int | None = None
    memory: Path | None = None  # the cache that remembers summaries of unchanged files; None: read it every time

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it is made of."""
        return (self.path,)

    def pieces(self) -> Iterator[str]:
        """The text, a few million characters at a time."""
        with self._progress() as progress:
            yield from first(self._texts(progress), self.limit)

    def raw_pieces(self) -> Iterator[bytes]:
        """The bytes as they lie on the disk, whatever they mean, a few million at a time."""
        with self._progress() as progress:
            yield from first(self._chunks(progress), self.limit)

    def summary(self) -> Summary:
        """Of the text. Read it all once, unless that was done before and the file has not changed since."""
        return self._summed("text", self.pieces, str.encode)

    def raw_summary(self) -> Summary:
        """Of the raw bytes; as `summary`, but nothing has to be text."""
        return self._summed("bytes", self.raw_pieces, bytes)

    def forget(self) -> None:
        """Read it all the next time."""
        if self.memory is not None:
            for kind in ("text", "bytes"):
                forget(self.memory, self._question(kind))

    def _texts(self, progress: ProgressLine) -> Iterator[str]:
        return decoded(self.path, progress)

    def _chunks(self, progress: ProgressLine) -> Iterator[bytes]:
        return chunks(self.path, progress)

    def _listing(self, now: FileStats) -> str:
        """For `Summary.listing`."""
        return ""

    def _question(self, kind: str) -> str:
        return f"{kind}|{self.limit}|{[str(file.absolute()) for file in self.files]}"

    def _summed(self, kind: str, pieces: Callable[[], Iterable[Piece]], encoded: Callable[[Piece], bytes]) -> Summary:
        before = self._look()
        known = None if self.memory is None else recall(self.memory, self._question(kind), before)
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
            remember(self.memory, self._question(kind), before, self._look(), summary._asdict())
        return summary

    def _look(self) -> FileStats:
        try:
            return stat_files(self.files)
        except OSError as error:
            raise unreadable(Path(error.filename or self.path), error) from error

    def _progress(self) -> ProgressLine:
        return ProgressLine(f"reading {self.path.name or self.path}", sum(self._look().sizes))


def first(pieces: Iterable[Piece], limit: int | None) -> Iterator[Piece]:
    """The pieces up to the first `limit` characters or bytes; empty ones are left out."""
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
    """A file's bytes, a few million at a time."""
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_PIECE):
                progress.advance(len(chunk))
                yield chunk
    except OSError as error:
        raise unreadable(path, error) from error


def decoded(path: Path, progress: ProgressLine) -> Iterator[str]:
    """A file's text; a `UserError` names the first byte that is not text, and where it stands."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = lines = 0  # bytes turned into text so far, and line ends among them
    for chunk in itertools.chain(chunks(path, progress), [b""]):
        held = len(decoder.getstate()[0])  # bytes of a character cut in two by the piece before
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
    """Why a file cannot be read, as a sentence."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"there is no file {path}; check the path given with --data.path")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{path} is a folder; give one text file with --data.path FILE")
    return UserError(f"cannot read {path}: {error.strerror or error}")


def _not_text(path: Path, what: str, position: int, line: int) -> UserError:
    return UserError(
        f"the file {path} is not text: {what} stands at position {position} (line {line + 1}); "
        "give a UTF-8 text file, or convert this one; --data.tokenizer bytes takes any file as it is"
    )


def gathered(pieces: Iterable[Piece], join: Callable[[list[Piece]], Piece]) -> Iterator[Piece]:
    """The same text in pieces of at least `_PIECE`: many small files should not be many small pieces."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield join(held)
            held, size = [], 0
    yield join(held)
