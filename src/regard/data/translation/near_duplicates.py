"""Which sentences are nearly the same as a known one, by chrF (Popović 2015), exactly and without comparing every pair.

chrF counts the runs of 1 to 6 characters that two texts share, white space apart: with the shares P of the first
text's and R of the second's that are shared, averaged over the lengths, it is 5PR / (4P + R), times 100. It is
sacrebleu's `CHRF()`.

A shared run of n characters begins with a shared run of n - 1, so the number m of shared runs of 4 bounds that of 5
and of 6; with the two lengths it bounds chrF. An index from each run of 4 to the texts that have it gives m for all
known texts at once, and the few that may be near enough are compared in full.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.data.origins.cache import partial_folder, settle
from regard.data.origins.progress import ProgressLine
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ORDERS = range(1, 7)
_INDEXED = 4  # characters of a run in the index
_BETA_2 = 4.0  # beta squared: a share of the second text counts four times
_SLACK = 1e-6  # for rounding, on the side of comparing once too often
_FORMAT = "near 1"  # part of the key: change it when what is stored changes its meaning


def chrf(one: str, other: str) -> float:
    """How near a text is to another, 0 to 100.

    >>> round(chrf("the cat sat", "the cat sits"), 2)
    61.03
    """
    return _score(_runs(one), _runs(other))


def near(texts: Sequence[str], known: Sequence[str], above: float) -> NDArray[np.bool_]:  # [texts]
    """For each text whether its chrF with one of the known ones is more than `above`."""
    found = np.zeros(len(texts), dtype=bool)
    if not len(texts) or not len(known):
        return found
    bare = ["".join(text.split()) for text in (*texts, *known)]
    index = _Index(bare, len(texts))
    lengths = np.array([len(text) for text in bare[len(texts) :]])
    needs: dict[int, NDArray[np.int64]] = {}  # length of a text -> of each known text, the least number of shared runs
    runs: dict[int, list[Counter[str]]] = {}
    with ProgressLine("comparing held-out sentences with the others", sum(map(len, texts))) as progress:
        for number, text in enumerate(texts):
            length = len(bare[number])
            if length not in needs:
                needs[length] = _needed(length, int(lengths.max()), above)[lengths]
            shared = index.shared(number)
            candidates = np.flatnonzero(shared >= needs[length])
            own = _runs(text)
            for candidate in map(int, candidates[np.argsort(-shared[candidates])]):  # the most likely ones first
                if candidate not in runs:
                    runs[candidate] = _runs(known[candidate])
                if _score(own, runs[candidate]) > above:
                    found[number] = True
                    break
            progress.advance(len(text))
    return found


def near_once(texts: Sequence[str], known: Sequence[str], above: float, cache: Path) -> NDArray[np.bool_]:
    """As `near`, from the cache if these texts were compared before."""
    question = json.dumps([_FORMAT, above, list(texts), list(known)])
    place = cache / "near" / f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, TypeError, IndexError):
        found = np.zeros(len(texts), dtype=bool)
        found[np.array(json.loads(place.read_text(encoding="utf-8")), dtype=np.int64)] = True
        return found
    found = near(texts, known, above)
    with suppress(UserError), partial_folder(cache) as partial:  # a cache that cannot be written is no reason to stop
        (partial / "near").write_text(json.dumps(np.flatnonzero(found).tolist()), encoding="utf-8")
        settle(partial / "near", place)
    return found


class _Index:
    """From every run of 4 characters to the known texts that have it.

    The second time a run occurs in a text it counts as another run, the third as another again: then two texts
    share as many as they have in common, however often each occurs.
    """

    def __init__(self, texts: Sequence[str], first: int) -> None:
        """`texts` from the `first` on are the known ones; those before ask."""
        owner, run = _numbered(texts)
        order = np.argsort(run, kind="stable")  # by run, then by text: the texts stood in order
        owner, run = owner[order], run[order]
        new_run = np.diff(run, prepend=-1) != 0
        begins = np.flatnonzero(new_run | (np.diff(owner, prepend=-1) != 0))  # of the same run in the same text
        time = np.arange(len(run)) - np.repeat(begins, np.diff(begins, append=len(run)))
        run = np.cumsum(new_run) * (int(time.max(initial=0)) + 1) + time
        asks = owner < first
        by_run = np.argsort(run[~asks], kind="stable")
        known, self._owners = run[~asks][by_run], owner[~asks][by_run] - first
        by_text = np.argsort(owner[asks], kind="stable")
        asked, stops = run[asks][by_text], np.searchsorted(owner[asks][by_text], np.arange(1, first))
        self._from, self._to = (np.split(np.searchsorted(known, asked, side), stops) for side in ("left", "right"))
        self._known = len(texts) - first

    def shared(self, number: int) -> NDArray[np.int64]:  # [known]
        """How many runs that text shares with each of the known ones."""
        spans = zip(self._from[number].tolist(), self._to[number].tolist(), strict=True)
        owners = [self._owners[start:stop] for start, stop in spans]
        return np.bincount(np.concatenate(owners) if owners else [], minlength=self._known)


def _numbered(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every run of 4 characters in order: the number of its text, and a number for what it is."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.array([len(text) for text in texts])
    owner = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(points))  # characters from here to the text's end
    starts = np.flatnonzero(left >= _INDEXED)
    occurs = np.bincount(points, minlength=1) > 0
    alphabet, letters = int(occurs.sum()), (np.cumsum(occurs) - 1)[points]
    if alphabet**_INDEXED >= 2**63:  # 55,109 different characters: number the runs of 2 first
        letters = np.unique(letters[:-1] * alphabet + letters[1:], return_inverse=True)[1].reshape(-1)
        return owner[starts], letters[starts] * len(points) + letters[starts + 2]
    run = np.zeros(len(starts), dtype=np.int64)
    for place in range(_INDEXED):
        run = run * alphabet + letters[starts + place]
    return owner[starts], run


def _needed(length: int, longest: int, above: float) -> NDArray[np.int64]:  # [longest + 1]
    """For every length of a known text, the least number of shared runs of 4 with which chrF may be more than `above`.

    Found by bisection: the bound grows with that number. Where nothing suffices it is more than there can be.
    """
    lengths = np.arange(longest + 1)
    low, high = np.zeros_like(lengths), np.full_like(lengths, max(length - _INDEXED + 1, 0) + 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = _bound(length, lengths, middle) > above - _SLACK
        low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough, middle, high)
    return low


def _bound(length: int, lengths: NDArray[np.int64], shared: NDArray[np.int64]) -> NDArray[np.float64]:
    """The most chrF can be for texts of these lengths that share so many runs of 4."""
    precision, recall, orders = np.zeros(len(lengths)), np.zeros(len(lengths)), np.zeros(len(lengths))
    for order in ORDERS:
        own, other = max(length - order + 1, 0), np.maximum(lengths - order + 1, 0)
        most = np.minimum(own, other) if order < _INDEXED else np.minimum(np.minimum(own, other), shared)
        precision += most / max(own, 1)
        recall += most / np.maximum(other, 1)
        orders += np.minimum(own, other) > 0
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    return 100 * _f(precision, recall, _BETA_2 * precision + recall)


def _f(precision: NDArray, recall: NDArray, weighed: NDArray) -> NDArray:
    return np.where(weighed > 0, (1 + _BETA_2) * precision * recall / np.where(weighed > 0, weighed, 1), 0)


def _runs(text: str) -> list[Counter[str]]:
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
    if precision + recall == 0:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return 100 * ((1 + _BETA_2) * precision * recall / (_BETA_2 * precision + recall))
