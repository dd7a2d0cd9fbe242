"""Stop strings: where a text ends, found in the text and not in its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may be the beginning of one.

    The first string is the one that ends first; of those that end together, the one that begins first. So the cut does
    not depend on the pieces in which the text arrives.

    >>> stops = StopStrings(["END"])
    >>> stops.feed("the E"), stops.feed("x"), stops.feed("it E"), stops.feed("ND of"), stops.found
    ('the ', 'Ex', 'it ', '', 'END')
    """

    def __init__(self, strings: Sequence[str]):
        if not all(strings):
            raise ValueError("a stop string is empty")
        self.strings = tuple(strings)
        self.found: str | None = None
        self._held = ""

    def feed(self, text: str) -> str:
        """Append text; return the part, not returned before, that is certain to precede any stop string."""
        if self.found is not None or not text:
            return ""
        text = self._held + text
        ends = [(at + len(s), at, s) for s in self.strings if (at := text.find(s)) >= 0]
        if ends:
            _, cut, self.found = min(ends)
            self._held = ""
        else:
            cut = len(text) - max((_overlap(text, s) for s in self.strings), default=0)
            self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        """The text that was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held


class StopCondition:
    """Whether the latest token of a sequence completes a stop string; it depends on the ``window`` latest.

    Every token stands for at least one byte, so a string of n bytes is within the latest n tokens.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]):
        self._tokenizer, self._strings = tokenizer, [string.encode() for string in strings]
        self.window = max(map(len, self._strings))

    def __call__(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode_bytes(tokens[-self.window :])
        return any(string in text for string in self._strings)


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` begin ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
