"""A tokenizer: bytes, and tokens for the most frequent pairs of letters.

regard train --with tokenizer.py --data.tokenizer digraphs --data.tokenizer.pairs 100
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.config import option
from regard.data.tokenizers import Tokenizer, TokenizerConfig

PAIR = re.compile(rb"[A-Za-z]{2}")


class Digraphs(Tokenizer):
    """Token i < 256 is byte i; the others are pairs of letters."""

    def __init__(self, pairs: list[str]):
        self.tokens = [bytes([i]) for i in range(256)] + [pair.encode() for pair in pairs]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.size, self.widths = len(self.tokens), np.array([len(token) for token in self.tokens])

    def encode(self, text: str) -> np.ndarray:
        pieces = re.findall(rb"(?s)[A-Za-z]{2}|.", text.encode())
        known = [[piece] if piece in self.ids else [piece[:1], piece[1:]] for piece in pieces]
        return np.array([self.ids[token] for tokens in known for token in tokens], dtype=np.int64)

    def decode_bytes(self, ids) -> bytes:
        return b"".join(self.tokens[i] for i in self._checked(ids))

    def cut(self, text: str) -> int:
        return max(text.rfind(" "), text.rfind("\n")) + 1  # no pair contains white space

    def save(self, path: Path | str) -> None:
        pairs = [token.decode() for token in self.tokens[256:]]
        Path(path).write_text(json.dumps({"type": "digraphs", "pairs": pairs}))

    @classmethod
    def read(cls, content: dict) -> "Digraphs | None":
        known = isinstance(content, dict) and content.get("type") == "digraphs"
        return cls(content["pairs"]) if known else None


@dataclass(frozen=True)
class DigraphsConfig(TokenizerConfig, kind="digraphs"):
    """Bytes and frequent pairs of letters."""

    pairs: int = option(100, "number of pairs")

    def build(self, pieces: Iterable[str]) -> Digraphs:
        counts = Counter(pair.decode() for piece in pieces for pair in PAIR.findall(piece.encode()))
        return Digraphs([pair for pair, _ in sorted(counts.items(), key=lambda x: (-x[1], x[0]))[: self.pairs]])
