"""Batches of pairs of similar length, with little padding.

The batch of a step is a pure function of (seed, step, rank, world, size). In every epoch the pairs are sorted by the
length of the longer side, then of the source, both in buckets: lengths within about a tenth, and sources within the
same quarter of that. Within a bucket the pairs are shuffled. The sorted pairs are divided into batches, and the batches
are shuffled. The sorted lengths are the same in every epoch, and therefore the boundaries and the number of batches.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_QUARTERS = 4


class LengthBuckets:
    """Divides pairs of given lengths into batches."""

    def __init__(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """``sources``, ``targets``: the numbers of tokens of both sides of each pair, at least 1."""
        self._tops = bucket_tops(np.maximum(sources, targets))  # [pairs]
        self._quarters = -(-_QUARTERS * sources // self._tops)
        self._sorted = np.sort(self._tops)
        self.cuts = lru_cache(4)(self._cut)
        self._drawn = lru_cache(2)(self._draw)

    def rows(self, step: int, *, seed: int, rank: int, world: int, size: int) -> NDArray[np.int64]:
        """The pairs of a step for this rank, with about ``size`` tokens on either side when padded.

        The batch of all ranks together has at most ``size * world`` tokens, whatever ``world`` is, so that fewer ranks
        with larger batches train on the same pairs. A rank's part may be one pair longer than ``size``, or empty.
        """
        cuts = self.cuts(size * world)
        epoch, place = divmod(step, len(cuts) - 1)
        pairs, batches = self._drawn(seed, epoch, len(cuts) - 1)
        number = batches[place]
        return pairs[cuts[number] : cuts[number + 1]][rank::world]

    def in_order(self, size: int, rank: int, world: int) -> Iterator[NDArray[np.int64]]:
        """Every pair once over all ranks, short ones first; the same number of batches for each rank."""
        order = np.lexsort((self._quarters, self._tops))
        for start, stop in pairwise(self.cuts(size * world)):
            yield order[start:stop][rank::world]

    def _cut(self, size: int) -> list[int]:
        """The boundaries of the batches: each has at most ``size`` tokens per side, or is a single pair."""
        total = len(self._sorted)
        cuts = [0]
        while (start := cuts[-1]) < total:

            def tokens(stop: int, start: int = start) -> int:
                return (stop - start) * int(self._sorted[stop - 1])

            room = bisect_right(range(start + 1, total + 1), size, key=tokens)
            cuts.append(start + max(room, 1))
        return cuts

    def _draw(self, seed: int, epoch: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The order of the pairs in an epoch, and of its batches.

        Only raw words of the generator are used: numpy keeps those the same across versions.
        """
        generator = np.random.Philox(key=(seed % 2**64) << 64 | epoch % 2**64)
        pairs = np.lexsort((generator.random_raw(len(self._tops)), self._quarters, self._tops))
        return pairs, np.argsort(generator.random_raw(count), kind="stable")


def bucket_tops(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest length of the bucket of each; those of a bucket are within about a tenth.

    >>> bucket_tops(np.array([1, 2, 30, 31, 33])).tolist()
    [1, 2, 30, 33, 33]
    """
    edges = [1]
    while edges[-1] < lengths.max(initial=1):
        edges.append(max(edges[-1] + 1, edges[-1] * 11 // 10))
    return np.array(edges)[np.searchsorted(edges, lengths)]
