"""A retrieval baseline for translation: the target of the most similar training source.

Sentences are bags of words with TF-IDF weights (Spärck Jones 1972), compared by cosine similarity. The index is
inverted: it lists the sentences of each word, so that a query visits only sentences with a common word.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in lower case.

    >>> words("Turn on the light, please!")
    ['turn', 'on', 'the', 'light', ',', 'please', '!']
    """
    return _WORD.findall(text.lower())


class RetrievalBaseline:
    """An index of training pairs by the words of their sources."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]):
        if len(sources) != len(targets):
            raise UserError(f"there are {len(sources):,} sources and {len(targets):,} targets; give pairs")
        self.targets = list(targets)
        counts = [Counter(words(source)) for source in sources]
        self._ids = {word: id for id, word in enumerate(dict.fromkeys(w for c in counts for w in c))}
        word = np.array([self._ids[w] for c in counts for w in c], dtype=np.int64)
        sentence = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
        frequency = np.array([n for c in counts for n in c.values()], dtype=np.float64)
        documents = np.bincount(word, minlength=len(self._ids))
        self._idf = np.log((1 + len(counts)) / (1 + documents)) + 1
        weight = frequency * self._idf[word]
        norm = np.sqrt(np.bincount(sentence, weight**2, minlength=len(counts)))
        order = np.argsort(word, kind="stable")
        ends = np.cumsum(documents)[:-1]
        self._sentences = np.split(sentence[order], ends)  # per word
        self._weights = np.split((weight / norm[sentence])[order], ends)

    def nearest(self, source: str) -> tuple[int, float]:
        """The number of the most similar training pair (the first of equals) and its cosine; -1: no common word."""
        similarity, norm = np.zeros(len(self.targets)), 0.0
        for word, count in Counter(words(source)).items():
            id = self._ids.get(word)
            # An unknown word adds to the norm only.
            weight = count * (np.log(1 + len(self.targets)) + 1 if id is None else self._idf[id])
            norm += weight**2
            if id is not None:
                similarity[self._sentences[id]] += weight * self._weights[id]
        best = int(similarity.argmax()) if len(similarity) else -1
        if best < 0 or similarity[best] == 0:
            return -1, 0.0
        return best, float(similarity[best] / np.sqrt(norm))

    def translate(self, source: str) -> str:
        """The target of the most similar training source; empty if no word is shared."""
        number, _ = self.nearest(source)
        return self.targets[number] if number >= 0 else ""
