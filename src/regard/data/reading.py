"""Reading a text file of any size in pieces, and saying exactly where a file stops being text."""

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError

_PIECE = 1 << 22  # bytes; what is held at a time is a small multiple of it


class Summary(NamedTuple):
    """A text's SHA-256 (of its UTF-8 bytes) and its length in characters."""

    sha256: str
    length: int


@dataclass(frozen=True)
class TextFile:
    """A UTF-8 text file, or its first `limit` characters."""

    path: Path
    limit: int | None = None

    def pieces(self) -> Iterator[str]:
        """The text, a few million characters at a time."""
        left = self.limit
        for piece in self._decoded():
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if left == 0:
                return

    def summary(self) -> Summary:
        """Read it all once."""
        digest, length = hashlib.sha256(), 0
        for piece in self.pieces():
            digest.update(piece.encode())
            length += len(piece)
        if not length:
            raise UserError(f"the file {self.path} is empty; give a text file with --data.path FILE")
        return Summary(digest.hexdigest(), length)

    def _decoded(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        decoded = lines = 0  # bytes turned into text so far, and line ends among them
        try:
            with open(self.path, "rb") as file:
                while True:
                    chunk = file.read(_PIECE)
                    held = len(decoder.getstate()[0])  # bytes of a character cut in two by the piece before
                    nul = chunk.find(b"\0")
                    if nul >= 0:
                        raise self._not_text("a NUL byte", decoded + held + nul, lines + chunk[:nul].count(b"\n"))
                    try:
                        piece = decoder.decode(chunk, final=not chunk)
                    except UnicodeDecodeError as error:
                        line = lines + error.object[: error.start].count(b"\n")
                        what = f"the byte 0x{error.object[error.start]:02X}, which is not UTF-8"
                        raise self._not_text(what, decoded + error.start, line) from None
                    yield piece
                    if not chunk:
                        return
                    decoded += held + len(chunk) - len(decoder.getstate()[0])
                    lines += piece.count("\n")
        except FileNotFoundError:
            raise UserError(f"there is no file {self.path}; check the path given with --data.path") from None
        except IsADirectoryError:
            raise UserError(f"{self.path} is a folder; give one text file with --data.path FILE") from None
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _not_text(self, what: str, position: int, line: int) -> UserError:
        return UserError(
            f"the file {self.path} is not text: {what} stands at position {position} (line {line + 1}); "
            "give a UTF-8 text file, or convert this one"
        )
