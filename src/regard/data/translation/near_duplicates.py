"""Near-duplicate sentences by chrF (Popović 2015), exactly, without comparing every pair.

chrF counts the n-grams of 1 to 6 characters that two texts share, without whitespace: with the precision P and recall
R, averaged over n, it is 5PR / (4P + R), times 100. It equals sacrebleu's `CHRF()`.

A shared n-gram begins with a shared (n-1)-gram, so the number m of shared 4-grams bounds that of 5- and 6-grams; with
the two lengths it bounds chrF. An index from each 4-gram to the texts that contain it gives m for all known texts at
once, and only texts above the bound are compared in full.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.origins.cache import store_json
from regard.data.origins.progress import ProgressLine

ORDERS = range(1, 7)
_INDEXED = 4  # the n of the n-grams in the index
_BETA_2 = 4.0  # beta squared: recall has four times the weight
_TINY = np.finfo(float).tiny  # instead of dividing by zero
_SLACK = 1e-6  # for rounding: in doubt, compare
_FORMAT = "near 1"  # part of the key: change it when the format changes


def chrf(one: str, other: str) -> float:
    """The chrF of two texts, 0 to 100.

    >>> round(chrf("the cat sat", "the cat sits"), 2)
    61.03
    """
    return _score(_ngrams(one), _ngrams(other))


def near(texts: Sequence[str], known: Sequence[str], above: float) -> NDArray[np.bool_]:  # [texts]
    """For each text, whether its chrF with one of the known texts is above ``above``."""
    found = np.zeros(len(texts), dtype=bool)
    if not len(texts) or not len(known):
        return found
    bare = ["".join(text.split()) for text in (*texts, *known)]
    index = _Index(bare, len(texts))
    lengths = np.array([len(text) for text in bare[len(texts) :]])
    needs: dict[int, NDArray[np.int64]] = {}  # by length: the least number of shared 4-grams
    ngrams: dict[int, list[Counter[str]]] = {}
    with ProgressLine("comparing held-out sentences with the others", sum(map(len, texts))) as progress:
        for number, text in enumerate(texts):
            length = len(bare[number])
            if length not in needs:
                needs[length] = _needed(length, int(lengths.max()), above)[lengths]
            shared = index.shared(number)
            candidates = np.flatnonzero(shared >= needs[length])
            own = _ngrams(text)
            for candidate in map(int, candidates[np.argsort(-shared[candidates])]):  # most likely first
                if candidate not in ngrams:
                    ngrams[candidate] = _ngrams(known[candidate])
                if _score(own, ngrams[candidate]) > above:
                    found[number] = True
                    break
            progress.advance(len(text))
    return found


def near_once(texts: Sequence[str], known: Sequence[str], above: float, cache: Path) -> NDArray[np.bool_]:
    """As ``near``, cached."""
    key = json.dumps([_FORMAT, above, list(texts), list(known)])
    place = cache / "near" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, TypeError, IndexError):
        found = np.zeros(len(texts), dtype=bool)
        found[np.array(json.loads(place.read_text(encoding="utf-8")), dtype=np.int64)] = True
        return found
    found = near(texts, known, above)
    store_json(cache, place, np.flatnonzero(found).tolist())
    return found


class _Index:
    """From every 4-gram to the known texts that contain it.

    The second occurrence of a 4-gram in a text counts as another one, so that the number of shared ones is that of the
    multisets.
    """

    def __init__(self, texts: Sequence[str], first: int) -> None:
        """``texts`` from ``first`` on are the known ones; those before are the queries."""
        owner, run = _numbered(texts)
        order = np.argsort(run, kind="stable")  # by 4-gram, then by text
        owner, run = owner[order], run[order]
        new_run = np.diff(run, prepend=-1) != 0
        begins = np.flatnonzero(new_run | (np.diff(owner, prepend=-1) != 0))  # of the same 4-gram in the same text
        time = np.arange(len(run)) - np.repeat(begins, np.diff(begins, append=len(run)))
        run = np.cumsum(new_run) * (int(time.max(initial=0)) + 1) + time
        query = owner < first
        by_run = np.argsort(run[~query], kind="stable")
        known, self._owners = run[~query][by_run], owner[~query][by_run] - first
        by_text = np.argsort(owner[query], kind="stable")
        wanted, stops = run[query][by_text], np.searchsorted(owner[query][by_text], np.arange(1, first))
        self._from, self._to = (np.split(np.searchsorted(known, wanted, side), stops) for side in ("left", "right"))
        self._known = len(texts) - first

    def shared(self, number: int) -> NDArray[np.int64]:  # [known]
        """The number of 4-grams that a query shares with each known text."""
        spans = zip(self._from[number].tolist(), self._to[number].tolist(), strict=True)
        owners = [self._owners[start:stop] for start, stop in spans]
        return np.bincount(np.concatenate(owners) if owners else [], minlength=self._known)


def _numbered(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every 4-gram in order: the index of its text, and an id."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
    lengths = np.array([len(text) for text in texts])
    owner = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(points))  # characters up to the end of the text
    starts = np.flatnonzero(left >= _INDEXED)
    # Four code points do not fit into 64 bits, but two do: the 2-grams are numbered first.
    pairs = np.unique(points[:-1] << 32 | points[1:], return_inverse=True)[1].reshape(-1)
    return owner[starts], pairs[starts] * len(points) + pairs[starts + 2]


def _needed(length: int, longest: int, above: float) -> NDArray[np.int64]:  # [longest + 1]
    """For every length of a known text, the least number of shared 4-grams with which chrF may be above ``above``.

    By bisection: the bound grows with that number. If no number suffices, it is larger than possible.
    """
    lengths = np.arange(longest + 1)
    low, high = np.zeros_like(lengths), np.full_like(lengths, max(length - _INDEXED + 1, 0) + 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = _bound(length, lengths, middle) > above - _SLACK
        low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough, middle, high)
    return low


def _bound(length: int, lengths: NDArray[np.int64], shared: NDArray[np.int64]) -> NDArray[np.float64]:
    """The largest chrF of texts with these lengths and number of shared 4-grams."""
    precision, recall, orders = np.zeros(len(lengths)), np.zeros(len(lengths)), np.zeros(len(lengths))
    for order in ORDERS:
        own, other = max(length - order + 1, 0), np.maximum(lengths - order + 1, 0)
        most = np.minimum(own, other) if order < _INDEXED else np.minimum(np.minimum(own, other), shared)
        precision += most / max(own, 1)
        recall += most / np.maximum(other, 1)
        orders += np.minimum(own, other) > 0
    return _f_score(precision / np.maximum(orders, 1), recall / np.maximum(orders, 1))


def _f_score(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    return 100 * ((1 + _BETA_2) * precision * recall / np.maximum(_BETA_2 * precision + recall, _TINY))


def _ngrams(text: str) -> list[Counter[str]]:
    bare = "".join(text.split())
    return [Counter(bare[i : i + order] for i in range(len(bare) - order + 1)) for order in ORDERS]


def _score(own: list[Counter[str]], others: list[Counter[str]]) -> float:
    precision, recall, orders = 0.0, 0.0, 0
    for mine, theirs in zip(own, others, strict=True):
        if mine and theirs:
            shared = sum(min(count, theirs[run]) for run, count in mine.items() if run in theirs)
            precision += shared / mine.total()
            recall += shared / theirs.total()
            orders += 1
    return float(_f_score(np.array(precision / max(orders, 1)), np.array(recall / max(orders, 1))))
