"""Decoding token by token: text as soon as it is certain, and never half a character."""

import codecs
from collections.abc import Callable
from typing import Any


class Stream:
    """Feed it token numbers; it gives the text they complete.

    The texts given, with that of `end`, put together are what `decode` says of all tokens at once.

    >>> stream = Stream(bytes)  # tokens that are bytes
    >>> stream.feed([0xE2, 0x82]), stream.feed([0xAC, 0x21]), stream.end()
    ('', '€!', '')
    """

    def __init__(self, decode_bytes: Callable[[Any], bytes]) -> None:
        """`decode_bytes`: what a tokenizer's tokens stand for."""
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Any) -> str:
        """The text that is certain after these tokens and was not before."""
        return self._decoder.decode(self._decode_bytes(ids))

    def end(self) -> str:
        """What is left of a character that was never finished, shown as U+FFFD."""
        return self._decoder.decode(b"", final=True)
