"""Rolling hash: Σ t[i+j] · b^j modulo 2^64 for all i at once, from cumulative sums."""

import numpy as np
from numpy.typing import NDArray

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))


def hashes_of(tokens: NDArray[np.int64], run: int) -> NDArray[np.uint64]:
    """The hash of every ``run`` consecutive tokens."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * _BASE
    mixed ^= mixed >> np.uint64(29)
    powers = np.full(len(tokens), _BASE, np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed * powers, dtype=np.uint64)))
    back = np.full(len(tokens) - run + 1, _INVERSE, np.uint64)
    back[0] = 1
    return (sums[run:] - sums[:-run]) * np.multiply.accumulate(back)
