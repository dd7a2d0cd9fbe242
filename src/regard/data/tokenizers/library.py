"""Calls of the `tokenizers` library. A `tokenizer.json` may come from anywhere, and the library panics on some."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from regard.data.tokenizers.base import JsonObject

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

T = TypeVar("T")


def guarded(call: Callable[[], T]) -> T:
    """The result of a call of the library; ``ValueError`` if it fails.

    A panic in its Rust code is a ``BaseException``, not an ``Exception``.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ValueError(f"the tokenizers library refuses it: {error}") from error


def read_library(given: JsonObject) -> LibraryTokenizer:
    """The library's tokenizer of a parsed `tokenizer.json`; ``ValueError`` if it cannot be read."""
    from tokenizers import Tokenizer as LibraryTokenizer

    text = json.dumps(given)
    return guarded(lambda: LibraryTokenizer.from_str(text))
