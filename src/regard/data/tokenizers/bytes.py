"""A token for every byte, for any file, text or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regard.data.tokenizers.base import Tokenizer, TokenizerConfig, utf8, write_json
from regard.data.tokenizers.byte_tokens import SINGLES, byte_level, content, looked_up

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class BytesConfig(TokenizerConfig, kind="bytes"):
    """Every byte is a token."""

    raw: ClassVar[bool] = True

    def build(self, pieces: Iterable[str]) -> Bytes:
        """The tokenizer; nothing is learned."""
        return Bytes()

    def learns_from(self, size: int) -> int:
        """Nothing."""
        return 0


class Bytes(Tokenizer):
    """A token for every byte; its id is the byte.

    >>> Bytes().encode("hé").tolist(), Bytes().decode([0x68, 0xC3, 0xA9])
    ([104, 195, 169], 'hé')
    """

    @classmethod
    def read(cls, given: Any) -> Bytes | None:
        """The tokenizer of a `tokenizer.json`; None if it is of another kind."""
        return cls() if looked_up(given) == list(SINGLES) and given["pre_tokenizer"] == byte_level() else None

    @property
    def size(self) -> int:
        """256."""
        return len(SINGLES)

    @property
    def widths(self) -> NDArray[np.int64]:  # [V]
        """One byte each."""
        return np.ones(self.size, dtype=np.int64)

    def encode(self, text: str | bytes) -> NDArray[np.int64]:
        """The UTF-8 of a text, or the given bytes."""
        raw = utf8(text) if isinstance(text, str) else text
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes."""
        return self._checked(ids).astype(np.uint8).tobytes()

    def cut(self, text: str) -> int:
        """Anywhere."""
        return len(text)

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` that the `tokenizers` library can load."""
        write_json(path, content(SINGLES, byte_level()))

    def _identity(self) -> None:
        return None
