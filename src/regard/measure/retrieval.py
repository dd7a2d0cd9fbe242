"""The baseline that learns nothing: the translation of the training sentence most like the one to translate.

Sentences are bags of words, weighted by TF-IDF (Spärck Jones 1972) and compared by their cosine. The index is inverted:
for each word the sentences that have it, so that a question touches only sentences it shares a word with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words and signs of a text, in lower case.

    >>> words("Turn on the light, please!")
    ['turn', 'on', 'the', 'light', ',', 'please', '!']
    """
    return _WORD.findall(text.lower())


class Nearest:
    """Training pairs, to be looked up by how like a source is."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]):
        if len(sources) != len(targets):
            raise UserError(f"there are {len(sources):,} sources and {len(targets):,} targets; give pairs")
        self.targets = list(targets)
        counts = [Counter(words(source)) for source in sources]
        self._numbers = {word: number for number, word in enumerate(dict.fromkeys(w for c in counts for w in c))}
        word = np.array([self._numbers[w] for c in counts for w in c], dtype=np.int64)
        where = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
        many = np.array([n for c in counts for n in c.values()], dtype=np.float64)
        spread = np.bincount(word, minlength=len(self._numbers))
        self._rarity = np.log((1 + len(counts)) / (1 + spread)) + 1
        weight = many * self._rarity[word]
        length = np.sqrt(np.bincount(where, weight**2, minlength=len(counts)))
        order = np.argsort(word, kind="stable")
        ends = np.cumsum(spread)[:-1]
        self._where = np.split(where[order], ends)
        self._weight = np.split((weight / length[where])[order], ends)

    def nearest(self, source: str) -> tuple[int, float]:
        """The number of the training pair most like `source`, the first of equals, and their cosine; -1 if none is."""
        likeness, length = np.zeros(len(self.targets)), 0.0
        for word, count in Counter(words(source)).items():
            number = self._numbers.get(word)
            # A word nobody knows makes the text longer and nothing likelier.
            weight = count * (np.log(1 + len(self.targets)) + 1 if number is None else self._rarity[number])
            length += weight**2
            if number is not None:
                likeness[self._where[number]] += weight * self._weight[number]
        best = int(likeness.argmax()) if len(likeness) else -1
        if best < 0 or likeness[best] == 0:
            return -1, 0.0
        return best, float(likeness[best] / np.sqrt(length))

    def translate(self, source: str) -> str:
        """The target of the nearest training source; nothing where none shares a word."""
        number, _ = self.nearest(source)
        return self.targets[number] if number >= 0 else ""
