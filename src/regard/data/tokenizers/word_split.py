r"""Where words begin: one rule, written for Python and for the `tokenizers` library.

A piece is a run of letters, of digits or of other signs, each with one space before it if there is one, or a
run of white space, from which the next word has taken that one space. It is GPT-2's rule less the English
contractions, and every character falls into exactly one piece.

Python's `\w` holds letters and all numbers, its `\d` decimal digits only, and its `\s` the separators U+001C to
U+001F; the library's regular expressions mean other things by these, so theirs are spelled out.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from regard.data.tokenizers.byte_tokens import byte_level
from regard.errors import UserError

WORDS = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_LIBRARY_WORDS = (
    r" ?[\p{L}\p{Nl}\p{No}]+| ?\p{Nd}+| ?[^\s\x1c-\x1f\p{L}\p{N}]+"
    r"|[\s\x1c-\x1f]+(?![^\s\x1c-\x1f])|[\s\x1c-\x1f]+"
)
_SLICE = 1 << 16  # characters that the library is given at a time
HELD = 1 << 24  # characters in a row without a place to cut, at most


def words_then_bytes() -> dict[str, Any]:
    """The rule as a pre-tokenizer of the library's."""
    split = {"type": "Split", "pattern": {"Regex": _LIBRARY_WORDS}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level()]}


def cut_words(text: str) -> int:
    """The last place before white space and after something else; 0 if there is none.

    No piece holds white space after anything else, so one ends there. And what the rule makes of either side
    does not depend on the other: it looks ahead only from white space, and only to the end of it.
    """
    for place in range(len(text) - 1, 0, -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    return 0


def regroup(pieces: Iterable[str], cut: Callable[[str], int], held_at_most: int | None = HELD) -> Iterator[str]:
    """The same text in pieces that may be encoded one by one: each ends where `cut` allows it."""
    held = ""
    for piece in pieces:
        held += piece
        if place := cut(held):
            yield held[:place]
            held = held[place:]
        elif held_at_most is not None and len(held) > held_at_most:
            raise UserError(
                f"the text has {len(held):,} characters in a row without a place to cut it ({held[:20]!r} ...), too "
                "many for this tokenizer; use --data.tokenizer bytes or characters"
            )
    if held:
        yield held


def slices(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in small pieces."""
    for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]
