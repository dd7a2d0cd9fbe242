"""The base classes of all tokenizers."""

import codecs
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.config import Choice, option
from regard.config.notation import JsonObject
from regard.errors import UserError

BYTES = 256  # every tokenizer but `characters` has a token for each byte, so that it can encode any text


class Stream:
    """An incremental decoder.

    The results of ``feed`` and ``end``, concatenated, equal ``decode`` of all tokens.

    >>> stream = Stream(bytes)  # each token is a byte
    >>> stream.feed([0xE2, 0x82]), stream.feed([0xAC, 0x21]), stream.end()
    ('', '€!', '')
    """

    def __init__(self, decode_bytes: Callable[[Sequence[int]], bytes]) -> None:
        """``decode_bytes``: of a tokenizer."""
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        return self._decoder.decode(self._decode_bytes(ids))

    def end(self) -> str:
        """The rest: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """Text to token ids and back, lossless: ``decode(encode(text)) == text``.

    Every token is a sequence of bytes; a text is the concatenation of its tokens, in UTF-8. A model may generate bytes
    that are not UTF-8: ``decode`` replaces those by U+FFFD, ``decode_bytes`` returns them unchanged.
    """

    lossless: ClassVar[bool] = True  # that of an imported encoder may not be

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        raise NotImplementedError

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """The number of bytes of each token, to convert a loss per token to one per byte."""
        raise NotImplementedError

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token ids of a text; ``UserError`` if it cannot be encoded."""
        raise NotImplementedError

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of an array of token ids."""
        raise NotImplementedError

    def decode(self, ids: ArrayLike) -> str:
        """The text of an array of token ids."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def word_edges(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # [V], [V]
        """Whether each token begins, and whether it ends, with a letter or digit.

        A token continues the word of the token before it if it begins with one and that token ends with one.
        """
        texts = [self.decode([number]) for number in range(self.size)]
        return np.array([text[:1].isalnum() for text in texts]), np.array([text[-1:].isalnum() for text in texts])

    def stream(self) -> Stream:
        """An incremental decoder."""
        return Stream(self.decode_bytes)

    def cut(self, text: str) -> int:
        """The last position where the beginning of a text may be split; 0 if there is none.

        Whatever follows, the ids of the two parts, concatenated, are those of the whole.
        """
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json`."""
        raise NotImplementedError

    @classmethod
    def read(cls, content: JsonObject) -> Self | None:
        """The tokenizer of a parsed `tokenizer.json`; None if another class wrote it."""
        return None

    def _identity(self) -> Hashable:
        """What distinguishes it from other tokenizers of its class. Default: nothing else is equal to it."""
        return id(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and type(other) is type(self) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((type(self), self._identity()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} tokens)"

    def _checked(self, ids: ArrayLike) -> NDArray[np.int64]:
        """The ids as a flat array; ``UserError`` if one of them is not a token."""
        numbers = np.asarray(ids).reshape(-1).astype(np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.size):
            wrong = int(numbers[(numbers < 0) | (numbers >= self.size)][0])
            raise UserError(f"there is no token {wrong}: this tokenizer has the ids 0 to {self.size - 1}")
        return numbers


class TokenizerConfig(Choice):
    """Which tokenizer encodes the text."""

    #: Whether it encodes the raw bytes of a file, text or not.
    raw: ClassVar[bool] = False

    def build(self, pieces: Iterable[str]) -> Tokenizer:
        """The tokenizer for a text, given in chunks."""
        raise NotImplementedError

    def known_size(self) -> int | None:
        """The size of the vocabulary, or the largest that it can have; None if only the text decides."""
        return None

    def learns_from(self, size: int) -> int:
        """The number of bytes at the beginning of a text of ``size`` bytes that the tokenizer is learned from."""
        return size


@dataclass(frozen=True)
class LearnedTokenizerConfig(TokenizerConfig):
    """A tokenizer whose vocabulary is learned from the beginning of the text."""

    vocabulary: int = option(4096, "the largest number of tokens; the first 256 are the bytes")
    megabytes: int = option(64, "MB at the beginning of the text that the vocabulary is learned from")

    def check(self) -> None:
        """Refuse impossible values before anything is read."""
        if self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}, but every one of the {BYTES} bytes needs a token")
        if self.megabytes < 1:
            raise ValueError(f"megabytes is {self.megabytes}, but a vocabulary is learned from at least 1")

    def known_size(self) -> int | None:
        """The largest that it can have; a short text may have fewer."""
        return self.vocabulary

    def learns_from(self, size: int) -> int:
        """The first ``megabytes``."""
        return min(size, self.megabytes * 10**6)

    def beginning(self, pieces: Iterable[str]) -> Iterator[str]:
        """The part of the text to learn from, independent of the chunks."""
        left = self.megabytes * 10**6
        for piece in pieces:
            raw = utf8(piece)
            if len(raw) >= left:
                yield raw[:left].decode("utf-8", "ignore")  # without an incomplete character at the end
                return
            left -= len(raw)
            yield piece


def utf8(text: str) -> bytes:
    """The UTF-8 of a text. A lone surrogate, which a str may contain, has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        point = ord(text[error.start])
        raise UserError(
            f"the character {text[error.start]!a} (U+{point:04X}) at position {error.start} is half of a surrogate "
            "pair and no Unicode text; leave it out"
        ) from None


def write_json(path: Path | str, content: JsonObject) -> None:
    """Write a `tokenizer.json`; equal content gives equal bytes."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    Path(path).write_text(text, encoding="utf-8", newline="\n")
