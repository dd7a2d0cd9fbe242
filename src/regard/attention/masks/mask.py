"""Masks: an algebra of who may see whom.

A mask is a value. ``allows(pairs)`` is its meaning; ``&``, ``|`` and ``~`` build an expression tree. Summaries let a
fast path skip work without looking at any pair:

* ``reach()``         how far back and ahead an allowed key can be, in order; ``None`` where there is no bound
* ``verdict(tile)``   for a tile of pairs known only by the least and greatest order on each side: may any pair be
                      allowed, must all be? Three-valued logic makes this exact enough for every expression in O(tiles).
* ``keeps()``         which keys a text that grows may still ask for: what a cache has to hold
* ``comb()``          whether only every so many-th key is seen, which a fast path finds side by side after regrouping
* ``relative``        whether the distance alone decides, so that all tiles along a diagonal are the same

They may be loose, never wrong: tests/laws/test_masks.py holds them to ``allows``. More masks: patterns.py, tables.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.summary import Comb, Keeps, Reach, Tile, Verdict, farther, fewer, nearer
from regard.attention.slots import Pairs


class Mask:
    """Base of all masks. A new one is a frozen dataclass with ``allows``; the summaries default to "anything"."""

    relative = False

    def allows(self, pairs: Pairs) -> Tensor:
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """How many batch rows it tells apart: 1 unless it holds tensors that differ by row."""
        return 1

    def reach(self) -> Reach:
        return Reach(None, None)

    def verdict(self, tile: Tile) -> Verdict:
        shape = torch.broadcast_shapes(tile.q_low.shape, tile.k_low.shape)
        no = torch.zeros(shape, dtype=torch.bool, device=tile.q_low.device)
        return Verdict(~no, no)

    def keeps(self) -> Keeps:
        return Keeps(0, self.reach().back)

    def comb(self) -> Comb:
        return Comb(1)

    def __and__(self, other: Mask) -> Mask:
        if isinstance(other, Full):
            return self
        return other if isinstance(self, Full) else And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)

    def __str__(self) -> str:
        from regard.attention.masks.expression import write  # which reads this file

        return write(self, brief=True)


@dataclass(frozen=True)
class Full(Mask):
    """Everybody sees everybody."""

    relative = True

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.q.order == pairs.q.order

    def verdict(self, tile: Tile) -> Verdict:
        yes = (tile.q_low <= tile.q_high) & (tile.k_low <= tile.k_high)
        return Verdict(yes, yes)


@dataclass(frozen=True)
class Causal(Mask):
    """Nothing sees what comes after it."""

    relative = True

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.k.order <= pairs.q.order

    def reach(self) -> Reach:
        return Reach(None, 0)

    def verdict(self, tile: Tile) -> Verdict:
        return Verdict(tile.k_low <= tile.q_high, tile.k_high <= tile.q_low)


@dataclass(frozen=True)
class Window(Mask):
    """The ``size`` nearest keys up to and including the query's own, and ``ahead`` after it."""

    relative = True

    size: int
    ahead: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.ahead < 0:
            raise ValueError(f"a window holds at least its own token: size >= 1 and ahead >= 0, not {self}")

    def allows(self, pairs: Pairs) -> Tensor:
        distance = pairs.q.order - pairs.k.order
        return (distance < self.size) & (distance >= -self.ahead)

    def reach(self) -> Reach:
        return Reach(self.size - 1, self.ahead)

    def verdict(self, tile: Tile) -> Verdict:
        least, greatest = tile.q_low - tile.k_high, tile.q_high - tile.k_low
        return Verdict((least < self.size) & (greatest >= -self.ahead), (greatest < self.size) & (least >= -self.ahead))


@dataclass(frozen=True)
class Dilated(Mask):
    """Every ``step``-th key: ``size`` of them up to the query's own, ``ahead`` after it."""

    relative = True

    size: int
    step: int
    ahead: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.step < 1 or self.ahead < 0:
            raise ValueError(f"a dilated window needs size >= 1, step >= 1 and ahead >= 0, not {self}")

    def allows(self, pairs: Pairs) -> Tensor:
        distance = pairs.q.order - pairs.k.order
        near = (distance < self.size * self.step) & (distance >= -self.ahead * self.step)
        return near & (distance % self.step == 0)

    def reach(self) -> Reach:
        return Reach((self.size - 1) * self.step, self.ahead * self.step)

    def comb(self) -> Comb:
        return Comb(self.step)

    def verdict(self, tile: Tile) -> Verdict:
        verdict = Window(self.size * self.step, self.ahead * self.step).verdict(tile)
        return verdict if self.step == 1 else Verdict(verdict.may, torch.zeros_like(verdict.must))


@dataclass(frozen=True)
class Strided(Mask):
    """Keys a whole number of strides away, in either direction (Child et al. 2019, the second head of fig. 3)."""

    relative = True

    stride: int

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"a stride is at least 1, not {self.stride}")

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.q.order - pairs.k.order) % self.stride == 0

    def comb(self) -> Comb:
        return Comb(self.stride)


@dataclass(frozen=True)
class Prefix(Mask):
    """Keys among the first ``length``: ``Causal() | Prefix(n)`` is the prefix language model."""

    length: int

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.k.order < self.length) & (pairs.q.order == pairs.q.order)

    def keeps(self) -> Keeps:
        return Keeps(self.length, 0)

    def verdict(self, tile: Tile) -> Verdict:
        any_query = tile.q_low == tile.q_low
        return Verdict((tile.k_low < self.length) & any_query, (tile.k_high < self.length) & any_query)


@dataclass(frozen=True)
class Global(Mask):
    """Tokens at these orders see everybody and are seen by everybody (Beltagy et al. 2020)."""

    orders: tuple[int, ...]

    def allows(self, pairs: Pairs) -> Tensor:
        return self._among(pairs.q.order) | self._among(pairs.k.order)

    def _among(self, order: Tensor) -> Tensor:
        found = order != order
        for one in self.orders:
            found = found | (order == one)
        return found

    def verdict(self, tile: Tile) -> Verdict:
        may = (tile.q_low != tile.q_low) | (tile.k_low != tile.k_low)
        for one in self.orders:
            may = may | ((tile.q_low <= one) & (one <= tile.q_high)) | ((tile.k_low <= one) & (one <= tile.k_high))
        return Verdict(may, torch.zeros_like(may))

    def keeps(self) -> Keeps:
        return Keeps(max(self.orders, default=-1) + 1, 0)


@dataclass(frozen=True)
class And(Mask):
    """Both."""

    left: Mask
    right: Mask

    @property
    def rows(self) -> int:
        return max(self.left.rows, self.right.rows)

    @property
    def relative(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.left.relative and self.right.relative

    def allows(self, pairs: Pairs) -> Tensor:
        return self.left.allows(pairs) & self.right.allows(pairs)

    def reach(self) -> Reach:
        (a, b), (c, d) = self.left.reach(), self.right.reach()
        return Reach(nearer(a, c), nearer(b, d))

    def keeps(self) -> Keeps:
        return fewer(self.left.keeps(), self.right.keeps())

    def comb(self) -> Comb:
        return min(self.left.comb(), self.right.comb(), key=lambda comb: comb.share)

    def verdict(self, tile: Tile) -> Verdict:
        one, two = self.left.verdict(tile), self.right.verdict(tile)
        return Verdict(one.may & two.may, one.must & two.must)


@dataclass(frozen=True)
class Or(Mask):
    """Either."""

    left: Mask
    right: Mask

    @property
    def rows(self) -> int:
        return max(self.left.rows, self.right.rows)

    @property
    def relative(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.left.relative and self.right.relative

    def allows(self, pairs: Pairs) -> Tensor:
        return self.left.allows(pairs) | self.right.allows(pairs)

    def reach(self) -> Reach:
        (a, b), (c, d) = self.left.reach(), self.right.reach()
        return Reach(farther(a, c), farther(b, d))

    def keeps(self) -> Keeps:
        (a, b), (c, d) = self.left.keeps(), self.right.keeps()
        return Keeps(max(a, c), farther(b, d))

    def verdict(self, tile: Tile) -> Verdict:
        one, two = self.left.verdict(tile), self.right.verdict(tile)
        return Verdict(one.may | two.may, one.must | two.must)


@dataclass(frozen=True)
class Not(Mask):
    """All the others. Empty slots stay empty: validity is not part of the tree."""

    inner: Mask

    @property
    def rows(self) -> int:
        return self.inner.rows

    @property
    def relative(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.relative

    def allows(self, pairs: Pairs) -> Tensor:
        return ~self.inner.allows(pairs)

    def verdict(self, tile: Tile) -> Verdict:
        inner = self.inner.verdict(tile)
        return Verdict(~inner.must, ~inner.may)
