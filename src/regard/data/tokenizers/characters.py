"""A token for every character of the text, in the order of the code points.

Encoding is one lookup in a table over code points, vectorized.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.tokenizers.base import JsonObject, Tokenizer, TokenizerConfig, write_json
from regard.data.tokenizers.byte_tokens import layout
from regard.errors import UserError

UNKNOWN = -1
_ANY_CHARACTER = r"[\s\S]"  # a dot does not match a newline


class Characters(Tokenizer):
    """A token for every character.

    >>> tokenizer = Characters.of(["to be"])
    >>> tokenizer.encode("bet").tolist(), tokenizer.decode([1, 2, 4])
    ([1, 2, 4], 'bet')
    """

    def __init__(self, characters: str) -> None:
        """``characters``: each once; the index of a character is its token id."""
        self.characters = characters
        self._points = code_points(characters)  # [V], token id -> code point
        self._numbers = np.full(max(map(ord, characters), default=-1) + 2, UNKNOWN, dtype=np.int32)
        self._numbers[self._points] = np.arange(len(characters))  # code point -> token id; the last entry: unknown
        if len(set(characters)) != len(characters):
            raise ValueError("a character occurs twice in the alphabet of a tokenizer")

    @classmethod
    def of(cls, pieces: Iterable[str]) -> "Characters":
        """The tokenizer of the characters that occur in a text, given in chunks."""
        occurs = np.zeros(0x110000, dtype=bool)
        for piece in pieces:
            occurs[code_points(piece)] = True
        return cls(_text(np.flatnonzero(occurs)))

    @classmethod
    def read(cls, content: JsonObject) -> "Characters | None":
        """The tokenizer of a `tokenizer.json`; None if it is of another kind."""
        try:
            vocabulary = content["model"]["vocab"]
            tokenizer = cls("".join(sorted(vocabulary, key=vocabulary.__getitem__)))
        except (KeyError, TypeError, AttributeError, ValueError):
            return None
        return tokenizer if tokenizer._content() == content else None

    @property
    def size(self) -> int:
        """The number of characters."""
        return len(self.characters)

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """The bytes of each character in UTF-8."""
        return 1 + np.searchsorted([0x80, 0x800, 0x10000], self._points, side="right")

    def encode(self, text: str) -> NDArray[np.int64]:
        """One id per character; a ``UserError`` names an unknown character and its position."""
        ids = self._numbers.take(code_points(text), mode="clip")  # beyond the table: its last entry, unknown
        if ids.min(initial=0) == UNKNOWN:
            place = int(np.argmax(ids == UNKNOWN))
            raise UserError(
                f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is not among "
                f"the {self.size} this tokenizer knows; leave it out, or use only these: {self.characters!r}"
            )
        return ids.astype(np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """The text of an array of token ids."""
        return _text(self._points[self._checked(ids)])

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The text in UTF-8."""
        return self.decode(ids).encode("utf-8", "surrogatepass")

    def cut(self, text: str) -> int:
        """Anywhere."""
        return len(text)

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` that the `tokenizers` library can load."""
        write_json(path, self._content())

    def _content(self) -> JsonObject:
        split = {"type": "Split", "pattern": {"Regex": _ANY_CHARACTER}, "behavior": "Isolated", "invert": False}
        vocabulary = {character: number for number, character in enumerate(self.characters)}
        return layout(split, {"type": "Fuse"}, {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"})

    def _identity(self) -> str:
        return self.characters


@dataclass(frozen=True)
class CharactersConfig(TokenizerConfig, kind="characters"):
    """Every character of the text is a token."""

    def build(self, pieces: Iterable[str]) -> Characters:
        """The characters that occur in the chunks."""
        return Characters.of(pieces)


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text."""
    # A lone surrogate, which a str may contain but a file may not, passes here and is reported as unknown.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _text(points: NDArray) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
