"""The memory of a process on a CPU: blocks that glibc has freed and later tensors do not fit into.

Traced allocations are replayed in a model of its heap: the smallest free block that is large enough is taken, freed
neighbors are joined, and what is freed is not given back to the system (``keep_freed_memory``). Blocks of 32 MiB and
more are mappings of their own, which are given back.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable
from typing import NamedTuple

ALIGNED, HEADER, PAGE = 64, 16, 4096  # PyTorch aligns tensors to 64 bytes; glibc adds a header
MAPPED = 32 * 2**20  # bytes of the smallest block that is a mapping of its own
STEPS = 4  # that are replayed; the heap grows in the first ones


class Event(NamedTuple):
    """A block that is allocated, or freed if it has no size."""

    block: int
    size: int | None = None


class Allocations(NamedTuple):
    """What a training allocates and frees, in order."""

    model: list[Event]
    micro_batch: list[Event]
    gradients: frozenset[int]  # blocks of a micro-batch that stay until the next step, if it is the first of its step
    first_update: list[Event]
    update: list[Event]
    weight: float = 1.0  # in the sum of those of a training

    def peak(self, accumulate: int) -> int:
        """The largest heap of a few steps, with the mappings."""
        heap = Heap()
        heap.replay(self.model, "model")
        kept: list[Hashable] = []
        for step in range(STEPS):
            for block in kept:
                heap.free(block)
            for turn in range(accumulate):
                of_step = self.gradients if turn == 0 else frozenset()
                heap.replay(self.micro_batch, (step, turn), of_step)
            kept = [((step, 0), block) for block in self.gradients]
            heap.replay(self.update if step else self.first_update, (step, "update"))
        return heap.peak


class Heap:
    """Places in memory; nothing is stored."""

    def __init__(self) -> None:
        self.top = self.mapped = self.peak = 0  # bytes
        self._free: list[tuple[int, int]] = []  # (size, start), sorted
        self._sizes: dict[int, int] = {}  # of free places, by start
        self._starts: dict[int, int] = {}  # of free places, by end
        self._blocks: dict[Hashable, tuple[int | None, int]] = {}  # (start, size); no start: a mapping

    def replay(self, events: Iterable[Event], run: Hashable, kept: frozenset[int] = frozenset()) -> None:
        """Allocate and free; blocks of one ``run`` are others than those of another. ``kept`` are not freed."""
        for block, size in events:
            if size is not None:
                self.allocate((run, block), size)
            elif block not in kept:
                self.free((run, block))

    def allocate(self, block: Hashable, size: int) -> None:
        """Find a place for a block."""
        if size >= MAPPED:
            size = -(-(size + HEADER) // PAGE) * PAGE
            self.mapped += size
            self._blocks[block] = (None, size)
        else:
            size = -(-(size + HEADER) // ALIGNED) * ALIGNED
            self._blocks[block] = (self._place(size), size)
        self.peak = max(self.peak, self.top + self.mapped)

    def free(self, block: Hashable) -> None:
        """Free a block, if it is there."""
        start, size = self._blocks.pop(block, (None, 0))
        if start is None:
            self.mapped -= size
            return
        if start + size in self._sizes:
            size += self._remove(start + size)
        if start in self._starts:
            start = self._starts[start]
            size += self._remove(start)
        self._insert(start, size)

    def _place(self, size: int) -> int:
        least = size + 2 * ALIGNED - 32  # an aligned place is cut out of a larger one
        place = bisect.bisect_left(self._free, (least, -1))
        if place < len(self._free):
            start = self._free[place][1]
            whole = self._remove(start)
            self._insert(start + size, whole - size)
            return start
        start = self._starts.get(self.top, self.top)
        if start != self.top:
            self._remove(start)
        self.top = start + size
        return start

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._free, (size, start))
        self._sizes[start], self._starts[start + size] = size, start

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        self._free.pop(bisect.bisect_left(self._free, (size, start)))
        return size
