"""How much of a text is in another one: exactly, by hashes of all runs, and nearly, by MinHash.

Texts are lists of documents, arrays of symbols. Language repeats itself, so a share is compared with the share of the
other text that occurs in it a second time, and runs are so long that chance does not explain a repetition.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.texts.rolling_hash import hashes_of

Symbols = NDArray[np.int64]
PERMUTATIONS, BAND = 32, 2  # hashes of a MinHash signature, and how many of them must agree to make a candidate
NEAR = 0.3  # the least estimated Jaccard similarity of near-duplicates
BITS = 12  # of information in a shingle
SAMPLE = 300_000  # symbols from which the information per symbol is estimated
_TABLE = 22  # bits of the table that rejects most hashes at once


class Share(NamedTuple):
    """How many pieces of a text are known."""

    known: int
    pieces: int
    first: int = 0  # the first known piece

    @property
    def part(self) -> float:
        return self.known / max(1, self.pieces)

    def described(self, what: str) -> str:
        return f"{self.known} of {self.pieces} {what} ({self.part:.1%}; the first is number {self.first})"

    def exceeds(self, usual: "Share", slack: float) -> bool:
        """More pieces are known than three times the usual part and ``slack`` explain, with three deviations."""
        expected = self.pieces * (slack + 3 * usual.part)
        return self.known > expected + 3 * expected**0.5


def information(text: Sequence[Symbols]) -> float:
    """Bits per symbol, from below: half of the entropy of a symbol given the one before it."""
    sample = np.concatenate([np.zeros(0, np.int64), *(document[:SAMPLE] for document in text)])[:SAMPLE]
    if len(sample) < 2:
        return 1.0
    pairs = sample[:-1] * (int(sample.max()) + 1) + sample[1:]
    return max(0.25, (_entropy(pairs) - _entropy(sample[:-1])) / 2)


def _entropy(values: NDArray[np.int64]) -> float:
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def known_lengths(text: Sequence[Symbols], other: Iterable[Symbols], run: int) -> list[Symbols]:
    """For each document and position, the length of the passage of ``other`` around it; 0 below ``run`` symbols.

    A passage is a sequence of known runs, each one symbol after the one before it.
    """
    starts = [hashes_of(document, run) if len(document) >= run else np.zeros(0, np.uint64) for document in text]
    table = np.zeros(1 << _TABLE, bool)
    for hashes in starts:
        table[hashes >> np.uint64(64 - _TABLE)] = True
    found = [np.zeros(0, np.uint64)]
    for document in other:
        if len(document) >= run:
            hashes = hashes_of(document, run)
            found.append(hashes[table[hashes >> np.uint64(64 - _TABLE)]])
    known = np.unique(np.concatenate(found))
    return [_passages(np.isin(hashes, known), run) for hashes in starts]


def _passages(known: NDArray[np.bool_], run: int) -> Symbols:
    """The lengths of passages from the marks of their runs."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])))).reshape(-1, 2)
    lengths, sizes = np.zeros(len(known), np.int64), edges[:, 1] - edges[:, 0]
    lengths[known] = np.repeat(sizes + run - 1, sizes)
    return lengths


def share_of(known: Iterable[NDArray[np.bool_]], piece: int) -> Share:
    """The share of pieces of so many symbols, in all documents, that have a mark."""
    pieces = [np.add.reduceat(marks, np.arange(0, len(marks), piece)) > 0 for marks in known if len(marks)]
    every = np.concatenate([np.zeros(0, bool), *pieces])
    return Share(int(every.sum()), len(every), int(every.argmax()) if len(every) else 0)


def shingle_length(text: Sequence[Symbols]) -> int:
    """The symbols of a shingle, so that two texts hardly share one by chance."""
    return int(np.clip(np.ceil(BITS / information(text)), 3, 12))


def similarities(text: Sequence[Symbols], other: Sequence[Symbols], shingle: int) -> NDArray[np.float64]:
    """For each document of ``text``, the Jaccard similarity of its shingles with those of the nearest of ``other``.

    Documents with fewer than two shingles are left out.
    """
    asked, known = (
        [np.unique(hashes_of(document, shingle)) for document in part if len(document) > shingle]
        for part in (text, other)
    )
    sizes = np.array([len(own) for own in known])
    hashes, owners = np.concatenate([np.zeros(0, np.uint64), *known]), np.repeat(np.arange(len(known)), sizes)
    order = hashes.argsort(kind="stable")
    hashes, owners = hashes[order], owners[order]
    found = np.zeros(len(asked))
    for number, own in enumerate(asked if len(known) else ()):
        begin, end = (np.searchsorted(hashes, own, side=side) for side in ("left", "right"))
        places = np.concatenate([np.zeros(0, np.int64), *map(np.arange, begin, end)])
        shared = np.bincount(owners[places], minlength=len(known))
        found[number] = (shared / (sizes + len(own) - shared)).max()
    return found


def near_duplicates(text: Sequence[Symbols], other: Sequence[Symbols]) -> tuple[Share, int]:
    """The windows of ``text`` that are nearly in ``other``, and their length; by MinHash (Broder 1997).

    A window is the set of its shingles. The windows of ``other`` overlap by three quarters.
    """
    shingle = shingle_length(other)
    block = 4 * shingle
    known = np.concatenate([np.zeros((0, PERMUTATIONS), np.uint64), *_signatures(other, shingle, block, 1)])
    asked = np.concatenate([np.zeros((0, PERMUTATIONS), np.uint64), *_signatures(text, shingle, block, 4)])
    near = np.zeros(len(asked), bool)
    for band in range(0, PERMUTATIONS, BAND) if len(known) and len(asked) else ():
        keys, wanted = (_band_keys(some[:, band : band + BAND]) for some in (known, asked))
        order = keys.argsort()
        place = order[np.searchsorted(keys[order], wanted).clip(max=len(order) - 1)]
        similar = (known[place] == asked).mean(1)
        near |= (keys[place] == wanted) & (similar >= NEAR)
    return share_of([near], 1), 4 * block


def _band_keys(signatures: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return signatures[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ signatures[:, 1]


def _signatures(text: Iterable[Symbols], shingle: int, block: int, stride: int) -> Iterator[NDArray[np.uint64]]:
    """The least hash of each window of four blocks, under every permutation: [windows, permutations]."""
    factors = np.random.default_rng(1).integers(1, 2**63, PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    for document in text:
        if len(document) < 2 * block + shingle:
            continue
        hashes = hashes_of(document, shingle)
        mixed = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        edges = np.arange(0, max(1, len(mixed) - block + 1), block)
        least = np.stack([np.minimum.reduceat(mixed * factor, edges) for factor in factors], axis=1)
        width = min(4, len(least))
        yield np.lib.stride_tricks.sliding_window_view(least, width, axis=0).min(-1)[::stride]
