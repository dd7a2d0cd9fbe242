"""Stop strings: where a text ends, found in the text and not in its tokens."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Lets text through up to the first stop string; what may be the beginning of one is held back.

    First is the string that ends first; of those that end together, the one that begins first. So the cut does not
    depend on how the text comes in pieces.

    >>> stops = Stops(["END"])
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
        """What of the text so far is certain to stand before any stop string, and was not given yet."""
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
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` begin ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
