"""Tokenizers of the `tokenizers` library: our own words and BPE, and byte-level BPEs made elsewhere."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.tokenizers.base import utf8
from regard.data.tokenizers.byte_tokens import ByteTokens, unwritten
from regard.data.tokenizers.lossless import tokens_of
from regard.data.tokenizers.word_split import cut_words, regroup, slices, words_then_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 32  # chunks that the library encodes in parallel


class ByteLevel(ByteTokens):
    """A lossless byte-level tokenizer of the library."""

    def __init__(self, content: dict[str, Any]) -> None:
        """``content``: of a `tokenizer.json`; ``ValueError`` if it cannot be used."""
        from tokenizers import Tokenizer as LibraryTokenizer

        super().__init__(tokens_of(content))
        try:
            self._library = LibraryTokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library raises no other
            raise ValueError(f"the tokenizers library refuses it: {error}") from error
        self._cuts = content["pre_tokenizer"] == words_then_bytes()

    @classmethod
    def of(cls, library: Any) -> ByteLevel:
        """From a tokenizer that the library trained."""
        return cls(json.loads(library.to_str()))

    @property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order; none for words."""
        pairs = json.loads(self._library.to_str())["model"]["merges"]
        return [(unwritten(left), unwritten(right)) for left, right in pairs]

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token ids of a text; a long one is split and encoded in parallel."""
        utf8(text)  # for its error message, which names the character
        parts = regroup(slices([text]), self.cut, held_at_most=None)
        ids = [np.zeros(0, dtype=np.int64)]
        while some := list(islice(parts, _AT_ONCE)):
            encoded = self._library.encode_batch_fast(some, add_special_tokens=False)
            ids += [np.array(part.ids, dtype=np.int64) for part in encoded]
        return np.concatenate(ids)

    def cut(self, text: str) -> int:
        """Before whitespace with our own pre-tokenizer; nowhere with another one."""
        return cut_words(text) if self._cuts else 0

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json` by the library."""
        Path(path).write_text(self._library.to_str(pretty=True), encoding="utf-8", newline="\n")

    def _identity(self) -> str:
        return self._library.to_str()
