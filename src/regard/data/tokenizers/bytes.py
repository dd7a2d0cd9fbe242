"""A token for every byte, for any file, text or not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.tokenizers.base import JsonObject, TokenizerConfig, utf8
from regard.data.tokenizers.byte_tokens import BYTE_LEVEL, SINGLES, ByteTokens, looked_up


class Bytes(ByteTokens):
    """A token for every byte; its id is the byte.

    >>> Bytes().encode("hé").tolist(), Bytes().decode([0x68, 0xC3, 0xA9])
    ([104, 195, 169], 'hé')
    """

    pre_tokenizer: ClassVar = BYTE_LEVEL

    def __init__(self) -> None:
        super().__init__(SINGLES)

    @classmethod
    def read(cls, content: JsonObject) -> "Bytes | None":
        """The tokenizer of a `tokenizer.json`; None if it is of another kind."""
        return cls() if looked_up(content, BYTE_LEVEL) == list(SINGLES) else None

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


@dataclass(frozen=True)
class BytesConfig(TokenizerConfig, kind="bytes"):
    """Every byte is a token."""

    raw: ClassVar[bool] = True

    def known_size(self) -> int | None:
        """One token for each byte."""
        return Bytes().size

    def build(self, pieces: Iterable[str]) -> Bytes:
        """The tokenizer; nothing is learned."""
        return Bytes()

    def learns_from(self, size: int) -> int:
        """Nothing."""
        return 0
