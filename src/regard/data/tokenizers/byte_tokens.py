"""Tokens that are byte sequences: the 256 bytes first, then longer ones, found by lookup.

In the `tokenizers` library this is a BPE model without merges that looks up whole pieces first (`ignore_merges`); other
pieces are encoded as bytes. The library writes a byte as a printable character, as GPT-2 does.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.tokenizers.base import BYTES, JsonObject, Tokenizer, write_json


def _alphabet() -> str:
    """The character for each byte: itself if it is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(BYTES))


ALPHABET = _alphabet()
_BYTE = {character: byte for byte, character in enumerate(ALPHABET)}
#: The library's ByteLevel step, as pre-tokenizer and as decoder.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SINGLES = tuple(bytes([byte]) for byte in range(BYTES))


def written(token: bytes) -> str:
    """A token in the library's notation."""
    return "".join(ALPHABET[byte] for byte in token)


def unwritten(token: str) -> bytes:
    """The bytes of a token in the library's notation; ``KeyError`` for other characters."""
    return bytes(_BYTE[character] for character in token)


class ByteTokens(Tokenizer):
    """A tokenizer with a table of the bytes of each token; subclasses implement ``encode`` and ``cut``."""

    pre_tokenizer: ClassVar[JsonObject]  # in the `tokenizer.json` that ``save`` writes

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """``tokens``: the bytes of each token, by id."""
        self.tokens = tuple(tokens)

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return len(self.tokens)

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """The number of bytes of each token."""
        return np.array([len(token) for token in self.tokens], dtype=np.int64)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of an array of token ids."""
        return b"".join([self.tokens[number] for number in self._checked(ids).tolist()])

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` of all tokens."""
        write_json(path, content(self.tokens, self.pre_tokenizer))

    def _identity(self) -> Hashable:
        return self.tokens


def layout(pre_tokenizer: JsonObject, decoder: JsonObject, model: JsonObject) -> JsonObject:
    """A `tokenizer.json` of these three parts."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def content(tokens: Sequence[bytes], pre_tokenizer: JsonObject) -> JsonObject:
    """A `tokenizer.json` for lookup of the pieces of ``pre_tokenizer``."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": {written(token): number for number, token in enumerate(tokens)},
        "merges": [],
    }
    return layout(pre_tokenizer, BYTE_LEVEL, model)


def looked_up(given: JsonObject, pre_tokenizer: JsonObject) -> list[bytes] | None:
    """The tokens of a `tokenizer.json` made by ``content`` with this pre-tokenizer; None for any other."""
    try:
        vocabulary = given["model"]["vocab"]
        tokens = [unwritten(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
    except (KeyError, TypeError, AttributeError):
        return None
    return tokens if tuple(tokens[:BYTES]) == SINGLES and given == content(tokens, pre_tokenizer) else None
