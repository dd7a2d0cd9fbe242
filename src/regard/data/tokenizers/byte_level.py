"""Tokenizers of the `tokenizers` library: our own words and BPE, and byte-level BPEs made elsewhere.

Of the latter only known lossless steps are accepted; all others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizers.base import JsonObject, utf8
from regard.data.tokenizers.byte_tokens import SINGLES, ByteTokens, content, unwritten
from regard.data.tokenizers.library import read_library
from regard.data.tokenizers.word_split import WORDS_THEN_BYTES, cut_words, regroup, slices
from regard.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import models, trainers

TWICE = 2  # the least number of occurrences of a token that is learned
_AT_ONCE = 32  # chunks that the library encodes in parallel


class ByteLevel(ByteTokens):
    """A lossless byte-level tokenizer of the library."""

    def __init__(self, given: JsonObject) -> None:
        """``given``: the content of a `tokenizer.json`; ``ValueError`` if it cannot be used."""
        super().__init__(tokens_of(given))
        self._library = read_library(given)
        self._cuts = given["pre_tokenizer"] == WORDS_THEN_BYTES
        self._missing = set(SINGLES) - set(self.tokens)  # published vocabularies lack bytes that no text had

    @property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order; none for words."""
        pairs = json.loads(self._library.to_str())["model"]["merges"]
        return [(unwritten(left), unwritten(right)) for left, right in pairs]

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token ids of a text; a long one is split and encoded in parallel."""
        self._check_bytes(utf8(text))
        parts = regroup(slices([text]), self.cut, held_at_most=None)
        ids = [np.zeros(0, dtype=np.int64)]
        while some := list(islice(parts, _AT_ONCE)):
            encoded = self._library.encode_batch_fast(some, add_special_tokens=False)
            ids += [np.array(part.ids, dtype=np.int64) for part in encoded]
        return np.concatenate(ids)

    def _check_bytes(self, text: bytes) -> None:
        """The library leaves out bytes without a token, without a word."""
        if found := sorted(one for one in self._missing if one in text):
            raise UserError(f"this tokenizer has no token for the byte 0x{found[0].hex().upper()}; leave it out")

    def cut(self, text: str) -> int:
        """Before whitespace with our own pre-tokenizer; nowhere with another one."""
        return cut_words(text) if self._cuts else 0

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json` by the library."""
        Path(path).write_text(self._library.to_str(pretty=True), encoding="utf-8", newline="\n")

    def _identity(self) -> str:
        return self._library.to_str()


def train(model: models.Model, trainer: trainers.Trainer, pieces: Iterable[str]) -> LibraryTokenizer:
    """A tokenizer of the library with our rule for words, learned from a text in chunks."""
    from tokenizers import Tokenizer as LibraryTokenizer

    learner = LibraryTokenizer.from_str(json.dumps(content([], WORDS_THEN_BYTES)))
    learner.model = model
    learner.train_from_iterator(regroup(slices(pieces), cut_words), trainer)
    return learner


def tokens_of(content: object) -> list[bytes]:
    """The bytes of each token of a lossless byte-level BPE, by id; ``ValueError`` if it is not one."""
    if not isinstance(content, dict) or not isinstance(model := content.get("model"), dict):
        raise ValueError("it has no model")
    if model.get("type") != "BPE":
        raise ValueError(f"its model is {model.get('type')}; only a byte-level BPE can be loaded")
    if reason := next(_reasons(content, model), None):
        raise ValueError(reason)
    numbered: dict[int, bytes] = {}
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise ValueError("its vocabulary is not a table of numbers")
    for token, number in vocabulary.items():
        try:
            numbered[number] = unwritten(token)
        except KeyError:
            if token not in {added["content"] for added in content["added_tokens"]}:
                raise ValueError(f"its token {token!r} is not written in the byte-level alphabet") from None
            numbered[number] = token.encode()
    if len(numbered) != len(vocabulary):
        raise ValueError("two of its tokens have the same number")
    for added in content["added_tokens"]:
        numbered[added["id"]] = added["content"].encode()
    if sorted(numbered) != list(range(len(numbered))):
        raise ValueError(f"its {len(numbered)} tokens do not have the numbers 0 to {len(numbered) - 1}")
    return [numbered[number] for number in range(len(numbered))]


def _reasons(content: JsonObject, model: JsonObject) -> Iterator[str]:
    """Why the tokenizer is not lossless, or does not give one sequence of tokens."""
    for key in ("normalizer", "truncation", "padding"):
        if content.get(key) is not None:
            yield f"it has a {key}, which changes text"
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            yield f"its model has a {key}, which is not supported"
    if model.get("byte_fallback"):
        yield "its model falls back to bytes instead of being made of them"
    if not isinstance(content.get("decoder"), dict) or content["decoder"].get("type") != "ByteLevel":
        yield "its decoder is not ByteLevel"
    yield from _pre_tokenizer_reasons(content.get("pre_tokenizer"), last=True)
    added = content.get("added_tokens")
    if not isinstance(added, list):
        yield "it has no list of added tokens"
        return
    for token in added:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not token.get("content"):
            yield "an added token has no number or no content"
        elif not isinstance(token["content"], str):
            yield "the content of an added token is not text"
        elif token.get("lstrip") or token.get("rstrip"):
            yield f"its token {token['content']!r} swallows the white space beside it"


def _pre_tokenizer_reasons(given: object, last: bool) -> Iterator[str]:
    """Only the last step converts text to bytes, and no step may remove or add any."""
    step = given if isinstance(given, dict) else {}
    kind = step.get("type")
    if kind == "Sequence" and isinstance(step.get("pretokenizers"), list) and step["pretokenizers"]:
        *before, end = step["pretokenizers"]
        for inner in before:
            yield from _pre_tokenizer_reasons(inner, last=False)
        yield from _pre_tokenizer_reasons(end, last)
    elif kind == "ByteLevel" and last:
        if step.get("add_prefix_space"):
            yield "it puts a space before the text"
    elif kind == "Split" and not last:
        if step.get("behavior") not in ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
            yield "it removes what it splits at"
    elif kind != "Digits" or last:
        yield f"its pre-tokenizer {kind} is not known to keep every byte"
