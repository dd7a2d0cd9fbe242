"""A token for every byte: for any text, and for files that are no text."""

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
    """Every byte is a token, whatever the file."""

    raw: ClassVar[bool] = True

    def build(self, pieces: Iterable[str]) -> Bytes:
        """There is nothing to learn."""
        return Bytes()

    def learns_from(self, size: int) -> int:
        """Nothing."""
        return 0


class Bytes(Tokenizer):
    """A token for every byte; its number is the byte.

    >>> Bytes().encode("hé").tolist(), Bytes().decode([0x68, 0xC3, 0xA9])
    ([104, 195, 169], 'hé')
    """

    @classmethod
    def read(cls, given: Any) -> Bytes | None:
        """The tokenizer of a `tokenizer.json`; None if that is another kind's."""
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
        """The bytes of a text in UTF-8, or those given."""
        raw = utf8(text) if isinstance(text, str) else text
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes themselves."""
        return self._checked(ids).astype(np.uint8).tobytes()

    def cut(self, text: str) -> int:
        """Anywhere."""
        return len(text)

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json`, which the `tokenizers` library reads to the same effect."""
        write_json(path, content(SINGLES, byte_level()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bytes)

    def __hash__(self) -> int:
        return hash(Bytes)

    def __repr__(self) -> str:
        return "Bytes()"
