"""Loading a `tokenizer.json`: our own kinds, a lossless byte-level BPE or, for an imported encoder, any other."""

import json
from collections.abc import Iterator
from pathlib import Path

from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.byte_level import ByteLevel
from regard.data.tokenizers.published import PublishedTokenizer, adds_tokens
from regard.errors import UserError
from regard.untrusted import check_depth, read_plain


def load_tokenizer(path: Path | str, data: bytes | None = None, *, lossless: bool = True) -> Tokenizer:
    """Load a `tokenizer.json` that ``save`` wrote, or a byte-level BPE; else ``UserError``.

    ``data``: the content of the file, if it has been read already. ``lossless=False``: any tokenizer of the
    `tokenizers` library, and one with a template of special tokens adds them.
    """
    path = Path(path)
    try:
        content = json.loads((read_plain(path, follow=True) if data is None else data).decode("utf-8"))
        check_depth(content)
    except FileNotFoundError:
        raise UserError(f"there is no tokenizer at {path}; check that the run folder is complete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the tokenizer {path} cannot be read: {error}") from error
    for kind in _classes(Tokenizer) if isinstance(content, dict) else ():
        if (tokenizer := kind.read(content)) is not None:
            return tokenizer
    try:
        if lossless or not adds_tokens(content):
            return ByteLevel(content)
    except ValueError as reason:
        if lossless:
            raise UserError(
                f"the tokenizer {path} is not one of ours, nor a byte-level BPE with an exact round trip: {reason}"
            ) from None
    try:
        return PublishedTokenizer(content)
    except ValueError as reason:
        raise UserError(f"the tokenizer {path} cannot be used: {reason}") from None


def _classes(base: type[Tokenizer]) -> Iterator[type[Tokenizer]]:
    """Every kind of tokenizer, those from outside the package included."""
    for cls in base.__subclasses__():
        yield cls
        yield from _classes(cls)
