"""What every tokenizer is to the code above: text to numbers and back, exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from regard.config import Choice, option
from regard.data.tokenizers.stream import Stream
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BYTES = 256  # every tokenizer but `characters` has a token for each byte, so that it can spell any text


class Tokenizer:
    """Text to token numbers and back. Law: `decode(encode(text)) == text`.

    Every token stands for some bytes, and a text is the UTF-8 of its tokens' bytes put together. A model may
    well write bytes that are no UTF-8: `decode` shows those as U+FFFD, `decode_bytes` gives them as they are.
    """

    @property
    def size(self) -> int:
        """How many different tokens there are."""
        raise NotImplementedError

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """How many bytes each token stands for, so that a loss per token can be told per byte."""
        raise NotImplementedError

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token numbers of a text; `UserError` for text that cannot be expressed."""
        raise NotImplementedError

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of token numbers, any array of them, read in order."""
        raise NotImplementedError

    def decode(self, ids: ArrayLike) -> str:
        """The text of token numbers."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> Stream:
        """A decoder for tokens that come one after the other."""
        return Stream(self.decode_bytes)

    def cut(self, text: str) -> int:
        """The last place where the beginning of a text may be cut; 0 if there is none.

        Whatever follows, the numbers of the two parts, one after the other, are those of the whole.
        """
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json`."""
        raise NotImplementedError

    @classmethod
    def read(cls, content: Any) -> Self | None:
        """The tokenizer of a parsed `tokenizer.json`; None if another class wrote it."""
        return None

    def _checked(self, ids: ArrayLike) -> NDArray[np.int64]:
        """The numbers in order; `UserError` if one of them is no token."""
        numbers = np.asarray(ids).reshape(-1).astype(np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.size):
            wrong = int(numbers[(numbers < 0) | (numbers >= self.size)][0])
            raise UserError(f"there is no token {wrong}: this tokenizer has the numbers 0 to {self.size - 1}")
        return numbers


class TokenizerConfig(Choice):
    """The choice of a tokenizer."""

    #: Whether it reads a file's bytes as they are, be they text or not.
    raw: ClassVar[bool] = False

    def build(self, pieces: Iterable[str]) -> Tokenizer:
        """A tokenizer made for a text, given in pieces."""
        raise NotImplementedError

    def learns_from(self, size: int) -> int:
        """Of a text of `size` bytes, how many (from its beginning) decide what the tokenizer is."""
        return size


@dataclass(frozen=True)
class LearnedTokenizerConfig(TokenizerConfig):
    """A tokenizer whose vocabulary is learned from the beginning of the text."""

    vocabulary: int = option(4096, "how many different tokens at most; the first 256 are the bytes")
    megabytes: int = option(64, "learn the vocabulary from the first so many MB of the text")

    def check(self) -> None:
        """Impossible values are errors before anything is read."""
        if self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}, but every one of the {BYTES} bytes needs a token")
        if self.megabytes < 1:
            raise ValueError(f"megabytes is {self.megabytes}, but a vocabulary is learned from at least 1")

    def learns_from(self, size: int) -> int:
        """The first `megabytes`."""
        return min(size, self.megabytes * 10**6)

    def beginning(self, pieces: Iterable[str]) -> Iterator[str]:
        """The part of the text to learn from, whatever the pieces it comes in."""
        left = self.megabytes * 10**6
        for piece in pieces:
            raw = utf8(piece)
            if len(raw) >= left:
                yield raw[:left].decode("utf-8", "ignore")  # not the half of a character at the very end
                return
            left -= len(raw)
            yield piece


def utf8(text: str) -> bytes:
    """The UTF-8 of a text. Half of a surrogate pair may stand in a str but has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        point = ord(text[error.start])
        raise UserError(
            f"the character {text[error.start]!a} (U+{point:04X}) at position {error.start} is half of a surrogate "
            "pair and no Unicode text; leave it out"
        ) from None


def write_json(path: Path | str, content: dict[str, Any]) -> None:
    """A `tokenizer.json`, the same bytes for the same content."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    Path(path).write_text(text, encoding="utf-8", newline="\n")
