r"""Splitting text into words: one rule, for Python and for the `tokenizers` library.

A piece is a run of letters, of digits or of other characters, each with one preceding space if there is one, or a run
of the remaining whitespace. It is GPT-2's rule without the English contractions; every character is in one piece.

Python's `\w` matches letters and all numbers, `\d` decimal digits only, and `\s` also the separators U+001C to U+001F;
the library's regular expressions differ, so the classes are written out there.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from regard.data.tokenizers.byte_tokens import BYTE_LEVEL
from regard.errors import UserError

WORDS = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_LIBRARY_WORDS = (
    r" ?[\p{L}\p{Nl}\p{No}]+| ?\p{Nd}+| ?[^\s\x1c-\x1f\p{L}\p{N}]+"
    r"|[\s\x1c-\x1f]+(?![^\s\x1c-\x1f])|[\s\x1c-\x1f]+"
)
#: The rule as a pre-tokenizer of the library.
WORDS_THEN_BYTES = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": _LIBRARY_WORDS}, "behavior": "Isolated", "invert": False},
        BYTE_LEVEL,
    ],
}
_SLICE = 1 << 16  # characters per call of the library
HELD = 1 << 24  # characters without a position to split, at most


def cut_words(text: str) -> int:
    """The last position before whitespace and after another character; 0 if there is none.

    A piece ends there, since none contains whitespace after another character. The pieces of either side do not depend
    on the other: the rule looks ahead only from whitespace, and only to its end.
    """
    for place in range(len(text) - 1, 0, -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    return 0


def regroup(pieces: Iterable[str], cut: Callable[[str], int], held_at_most: int | None = HELD) -> Iterator[str]:
    """The same text in chunks that may be encoded one by one: each ends at a position that ``cut`` allows."""
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
    """The same text in small chunks."""
    for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]
