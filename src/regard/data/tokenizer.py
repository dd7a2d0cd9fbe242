"""Tokenizers: text to numbers and back, exactly.

`Characters` gives every character of the text a number, in the order of the code points. It is saved as a
`tokenizer.json` that the `tokenizers` library reads to the same effect; encoding itself is one lookup in a
table over code points, with no Python work per character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from regard.config import Choice
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

UNKNOWN = -1


class Tokenizer(Protocol):
    """What the rest of the library asks of a tokenizer. Law: decode(encode(text)) == text."""

    @property
    def size(self) -> int:
        """How many different tokens there are."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token numbers of a text; `UserError` for text that cannot be expressed."""
        ...

    def decode(self, ids: ArrayLike) -> str:
        """The text of token numbers."""
        ...

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json`."""
        ...


class TokenizerConfig(Choice):
    """The choice of a tokenizer."""

    def build(self, pieces: Iterable[str]) -> Tokenizer:
        """A tokenizer made for a text, given in pieces."""
        raise NotImplementedError


@dataclass(frozen=True)
class CharactersConfig(TokenizerConfig, kind="characters"):
    """Every character of the text is a token."""

    def build(self, pieces: Iterable[str]) -> Characters:
        """The characters that occur in the pieces."""
        return Characters.of(pieces)


class Characters:
    """A token for every character.

    >>> tokenizer = Characters.of(["to be"])
    >>> tokenizer.encode("bet").tolist(), tokenizer.decode([1, 2, 4])
    ([1, 2, 4], 'bet')
    """

    def __init__(self, characters: str) -> None:
        """`characters`: all of them, each once; a character's place is its token number."""
        self.characters = characters
        self._points = code_points(characters)  # [V], token number -> code point
        self._numbers = np.full(max(map(ord, characters), default=-1) + 2, UNKNOWN, dtype=np.int32)
        self._numbers[self._points] = np.arange(len(characters))  # code point -> token number; the last one: unknown
        if len(set(characters)) != len(characters):
            raise ValueError("a character occurs twice in the alphabet of a tokenizer")

    @classmethod
    def of(cls, pieces: Iterable[str]) -> Characters:
        """The tokenizer of the characters that occur in a text, given in pieces."""
        occurs = np.zeros(0x110000, dtype=bool)
        for piece in pieces:
            occurs[code_points(piece)] = True
        return cls(_text(np.flatnonzero(occurs)))

    @property
    def size(self) -> int:
        """How many different characters there are."""
        return len(self.characters)

    def encode(self, text: str) -> NDArray[np.int64]:
        """One number per character; an unknown character is a `UserError` that names it and its place."""
        ids = self._numbers.take(code_points(text), mode="clip")  # past the table is its last place: unknown
        if ids.min(initial=0) == UNKNOWN:
            place = int(np.argmax(ids == UNKNOWN))
            raise UserError(
                f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is not among "
                f"the {self.size} this tokenizer knows; leave it out, or use only these: {self.characters!r}"
            )
        return ids.astype(np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """The text of token numbers, any array of them, read in order."""
        numbers = np.asarray(ids).reshape(-1).astype(np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.size):
            wrong = int(numbers[(numbers < 0) | (numbers >= self.size)][0])
            raise UserError(f"there is no token {wrong}: this tokenizer has the numbers 0 to {self.size - 1}")
        return _text(self._points[numbers])

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json` in the format of the `tokenizers` library."""
        from tokenizers import Regex, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as LibraryTokenizer

        vocabulary = {character: number for number, character in enumerate(self.characters)}
        library = LibraryTokenizer(models.WordLevel(vocabulary))
        library.pre_tokenizer = pre_tokenizers.Split(Regex(_ANY_CHARACTER), "isolated")
        library.decoder = decoders.Fuse()
        Path(path).write_text(library.to_str(pretty=True), encoding="utf-8", newline="\n")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Characters) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"Characters({self.characters!r})"


_ANY_CHARACTER = r"[\s\S]"  # a dot would leave out the newline


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a `tokenizer.json` that `save` wrote; anything else is a `UserError`."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no tokenizer at {path}; check that the run folder is complete") from None
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer {path} cannot be read: {error}") from error
    try:
        splits_characters = content["pre_tokenizer"]["pattern"] == {"Regex": _ANY_CHARACTER}
        vocabulary = content["model"]["vocab"]
        characters = "".join(sorted(vocabulary, key=vocabulary.__getitem__))
        numbers_in_order = sorted(vocabulary.values()) == list(range(len(characters)))
        if content["model"]["type"] == "WordLevel" and splits_characters and numbers_in_order:
            return Characters(characters)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    raise UserError(f"the tokenizer {path} is not one of ours (a token for every character)")


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text."""
    # Half of a surrogate pair may stand in a str but not in a file; let it through here to be named as
    # unknown.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _text(points: NDArray) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
