"""Tokens that are pieces of bytes: the 256 bytes first, then longer ones, found by looking them up.

The `tokenizers` library writes a byte as a printable character (GPT-2's way) and calls this a BPE model that
has no merges but looks a whole piece up first (`ignore_merges`): what is not found falls into its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.tokenizers.base import BYTES, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def _alphabet() -> str:
    """The character that stands for each byte: itself if it is printed with ink, else one from U+0100 on."""
    inked = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in inked else next(others)) for byte in range(BYTES))


ALPHABET = _alphabet()
_BYTE = {character: byte for byte, character in enumerate(ALPHABET)}
SINGLES = tuple(bytes([byte]) for byte in range(BYTES))


def written(token: bytes) -> str:
    """A token as the library writes it in a vocabulary."""
    return "".join(ALPHABET[byte] for byte in token)


def unwritten(token: str) -> bytes:
    """The bytes of a token of the library's; `KeyError` if it is not written in its alphabet of bytes."""
    return bytes(_BYTE[character] for character in token)


class ByteTokens(Tokenizer):
    """The half of a tokenizer that needs to know no more than what each token stands for."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """`tokens`: the bytes of each token, by its number."""
        self.tokens = tuple(tokens)

    @property
    def size(self) -> int:
        """How many different tokens there are."""
        return len(self.tokens)

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """How many bytes each token stands for."""
        return np.array([len(token) for token in self.tokens], dtype=np.int64)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of token numbers, any array of them, read in order."""
        return b"".join([self.tokens[number] for number in self._checked(ids).tolist()])


def layout(pre_tokenizer: Any, decoder: Any, model: Any) -> dict[str, Any]:
    """The `tokenizer.json` of these three parts and no others."""
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


def content(tokens: Sequence[bytes], pre_tokenizer: Any) -> dict[str, Any]:
    """The `tokenizer.json` of tokens that are looked up after `pre_tokenizer` has cut the text into pieces."""
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
    return layout(pre_tokenizer, byte_level(), model)


def byte_level() -> dict[str, Any]:
    """The step that writes bytes as characters, and as a decoder the way back."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def looked_up(given: Any) -> list[bytes] | None:
    """The tokens of a `tokenizer.json` like those of `content`; None if it is something else."""
    try:
        vocabulary = given["model"]["vocab"]
        tokens = [unwritten(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
        alike = given == content(tokens, given["pre_tokenizer"])
    except (KeyError, TypeError, AttributeError):
        return None
    return tokens if alike and tuple(tokens[:BYTES]) == SINGLES else None
