"""Incremental decoding: only complete characters are returned."""

import codecs
from collections.abc import Callable
from typing import Any


class Stream:
    """An incremental decoder.

    The results of ``feed`` and ``end``, concatenated, equal ``decode`` of all tokens.

    >>> stream = Stream(bytes)  # each token is a byte
    >>> stream.feed([0xE2, 0x82]), stream.feed([0xAC, 0x21]), stream.end()
    ('', '€!', '')
    """

    def __init__(self, decode_bytes: Callable[[Any], bytes]) -> None:
        """``decode_bytes``: of a tokenizer."""
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Any) -> str:
        """The characters that these tokens complete."""
        return self._decoder.decode(self._decode_bytes(ids))

    def end(self) -> str:
        """The rest: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
