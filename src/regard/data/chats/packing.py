"""Packing of conversations into rows, and the order in which rows are trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """The numbers of the documents in each row of ``room`` tokens: best fit, the longest first.

    >>> pack([3, 9, 4, 6, 1], 10)
    [[1, 4], [3, 2], [0]]
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(room + 1)]  # the rows that have this much room left
    for number in sorted(range(len(lengths)), key=lambda one: (-lengths[one], one)):
        size = lengths[number]
        left = next((left for left in range(size, room + 1) if by_room[left]), None)
        if left is None:
            left, row = room, len(rows)
            rows.append([])
        else:
            row = by_room[left].pop()
        rows[row].append(number)
        by_room[left - size].append(row)
    return rows


def rows_of_step(step: int, count: int, *, seed: int, rank: int, world: int, size: int) -> NDArray[np.int64]:
    """The numbers of a part's rows in one step, [size]. Each epoch has all ``count`` rows, shuffled again.

    Raw words of a counter-based generator: the same on every machine, and nothing to save.
    """
    place = (step * world + rank) * size + np.arange(size)
    epochs, inside = np.divmod(place, count)
    orders = {int(epoch): _order(seed, int(epoch), count) for epoch in np.unique(epochs)}
    return np.array([orders[int(epoch)][at] for epoch, at in zip(epochs, inside, strict=True)], dtype=np.int64)


def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    words = 2**64
    generator = np.random.Philox(key=(seed % words) << 64 | epoch % words)
    return np.argsort(generator.random_raw(count), kind="stable")


def rows_in_order(count: int, size: int, rank: int, world: int) -> list[NDArray[np.int64]]:
    """The numbers of a rank's rows by batch; every rank has as many batches, and numbers from ``count`` on are none."""
    firsts = range(0, count, size * world)
    return [first + rank * size + np.arange(size) for first in firsts]
