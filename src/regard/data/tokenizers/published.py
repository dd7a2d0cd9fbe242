"""Tokenizers of imported encoders: whatever the `tokenizers` library can read, such as WordPiece.

They need not be lossless (BERT's drops case and accents), so no training text is prepared with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.tokenizers.base import JsonObject, Tokenizer, utf8
from regard.data.tokenizers.library import guarded, read_library
from regard.errors import UserError


class EncodedText(NamedTuple):
    """A text, or two, as an encoder reads them, with its special tokens."""

    ids: NDArray[np.int64]  # [N]
    types: NDArray[np.int64]  # [N], 0 in the first text and 1 in the second
    spans: NDArray[np.int64]  # [N, 2], where each token begins and ends in its text, in characters
    words: NDArray[np.int64]  # [N], the number of the word that each token is part of; -1: a special token


class PublishedTokenizer(Tokenizer):
    """A tokenizer of the library. ``encode`` adds the special tokens that the model expects, such as [CLS]."""

    lossless = False

    def __init__(self, given: JsonObject) -> None:
        """``given``: the content of a `tokenizer.json`; ``ValueError`` if the library cannot use it."""
        self._library = read_library(given)
        guarded(self._library.no_padding)
        guarded(self._library.no_truncation)
        numbers = guarded(lambda: self._library.get_vocab(with_added_tokens=True))
        if not numbers:
            raise ValueError("it has no tokens")
        self._size = max(numbers.values()) + 1
        if self._size > 2 * len(numbers) + 1024:
            raise ValueError(f"it has {len(numbers)} tokens, but one of them has the number {self._size - 1}")
        self._numbers = numbers
        self._encode(["a", ("a", "b")])  # some faults show only when a text is encoded

    @property
    def size(self) -> int:
        return self._size

    @property
    def widths(self) -> NDArray[np.int64]:
        widths = np.zeros(self._size, dtype=np.int64)
        for token, number in self._numbers.items():
            widths[number] = len(token.encode())
        return widths

    @property
    def tokens(self) -> dict[str, int]:
        """Every token, special ones such as `<|en|>` too, and its number."""
        return self._numbers

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_texts([text])[0].ids

    def encode_texts(self, texts: Iterable[str | tuple[str, str]], longest: int | None = None) -> list[EncodedText]:
        """Texts, or pairs of texts such as a question and a passage; of a pair the longer one is cut at ``longest``."""
        given = list(texts)
        for text in given:
            for part in (text,) if isinstance(text, str) else text:
                utf8(part)
        try:
            if longest is not None:
                guarded(lambda: self._library.enable_truncation(longest))
            return self._encode(given)
        except ValueError as error:
            raise UserError(f"the tokenizer cannot encode this text: {error}") from error
        finally:
            self._library.no_truncation()

    def encode_words(self, sentences: Iterable[Sequence[str]]) -> list[EncodedText]:
        """Sentences that are divided into words already; ``words`` of the result are their numbers."""
        given = [list(sentence) for sentence in sentences]
        for sentence in given:
            utf8("".join(sentence))
        try:
            return self._encode(given, divided=True)
        except ValueError as error:
            raise UserError(f"the tokenizer cannot encode these words: {error}") from error

    def _encode(self, given: Sequence[str | tuple[str, str] | list[str]], divided: bool = False) -> list[EncodedText]:
        found = guarded(lambda: self._library.encode_batch(given, is_pretokenized=divided))
        texts = [_encoded(one.ids, one.type_ids, one.offsets, one.word_ids) for one in found]
        if any((text.ids >= self._size).any() for text in texts):
            raise ValueError(f"it gives tokens that are none of its {self._size}")
        return texts

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The text of all tokens, special ones included."""
        numbers = self._checked(ids).tolist()
        return guarded(lambda: self._library.decode(numbers, skip_special_tokens=False)).encode()

    def decode(self, ids: ArrayLike) -> str:
        """The text without special tokens."""
        numbers = self._checked(ids).tolist()
        return guarded(lambda: self._library.decode(numbers, skip_special_tokens=True))

    def cut(self, text: str) -> int:
        return 0

    def save(self, path: Path | str) -> None:
        Path(path).write_text(self._library.to_str(pretty=True), encoding="utf-8", newline="\n")

    def _identity(self) -> str:
        return self._library.to_str()


def _encoded(ids: list[int], types: list[int], spans: list[tuple[int, int]], words: list[int | None]) -> EncodedText:
    numbers = [-1 if word is None else word for word in words]
    flat = [np.array(values, dtype=np.int64) for values in (ids, types, spans, numbers)]
    return EncodedText(flat[0], flat[1], flat[2].reshape(-1, 2), flat[3])


def adds_tokens(given: object) -> bool:
    """Whether a parsed `tokenizer.json` has a template of special tokens around a text."""
    template = given.get("post_processor") if isinstance(given, dict) else None
    return isinstance(template, dict) and template.get("type") != "ByteLevel"
