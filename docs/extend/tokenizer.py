"""A tokenizer: bytes, and tokens for the most frequent pairs of letters.

regard train --with tokenizer.py --data.tokenizer digraphs --data.tokenizer.pairs 100
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.config import option
from regard.data.tokenizers import Tokenizer, TokenizerConfig, write_json


class Digraphs(Tokenizer):
    """Token i < 256 is byte i; the others are pairs of letters."""

    def __init__(self, pairs: list[str]):
        self.tokens = [bytes([i]) for i in range(256)] + [pair.encode() for pair in pairs]
        self.ids = {token: [i] for i, token in enumerate(self.tokens)}  # an unknown pair is its two bytes

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def widths(self) -> np.ndarray:
        return np.array([len(token) for token in self.tokens])

    def encode(self, text: str) -> np.ndarray:
        pieces = re.findall(rb"(?s)[A-Za-z]{2}|.", text.encode())
        return np.array([i for piece in pieces for i in self.ids.get(piece) or piece], dtype=np.int64)

    def decode_bytes(self, ids) -> bytes:
        return b"".join(self.tokens[i] for i in self._checked(ids))

    def cut(self, text: str) -> int:
        return max(text.rfind(" "), text.rfind("\n")) + 1  # no pair contains white space

    def save(self, path: Path | str) -> None:
        write_json(path, {"type": "digraphs", "pairs": [token.decode() for token in self.tokens[256:]]})

    @classmethod
    def read(cls, content: dict) -> "Digraphs | None":
        return cls(content["pairs"]) if content.get("type") == "digraphs" else None


@dataclass(frozen=True)
class DigraphsConfig(TokenizerConfig, kind="digraphs"):
    """Bytes and frequent pairs of letters."""

    pairs: int = option(100, "number of pairs")

    def build(self, pieces: Iterable[str]) -> Digraphs:
        counts = Counter(pair for piece in pieces for pair in re.findall("[A-Za-z]{2}", piece))
        return Digraphs([pair for pair, _ in counts.most_common(self.pairs)])
