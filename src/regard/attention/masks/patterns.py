"""Masks of the sparse attentions in the literature; like those of mask.py they say what fast paths may skip.

Where they count from the beginning of a text they look at phases, which restart with each packed document.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.mask import Mask
from regard.attention.masks.summary import Comb, Keeps, Reach, Tile, Verdict
from regard.attention.slots import Pairs


@dataclass(frozen=True)
class Sinks(Mask):
    """The first ``count`` tokens of each document are seen by everybody (Xiao et al. 2024, "attention sinks").

    ``mutual``: they see everybody too, as Longformer's global tokens do (Beltagy et al. 2020, sec. 3.1).
    """

    count: int
    mutual: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"sinks are zero tokens or more, not {self.count}")

    def allows(self, pairs: Pairs) -> Tensor:
        seen = (pairs.k.phase < self.count) & (pairs.q.order == pairs.q.order)
        return seen | (pairs.q.phase < self.count) if self.mutual else seen

    def keeps(self) -> Keeps:
        return Keeps(self.count, 0)

    def verdict(self, tile: Tile) -> Verdict:
        if tile.q_phases is None or tile.k_phases is None:
            return super().verdict(tile)
        (q_least, q_most), (k_least, k_most) = tile.q_phases, tile.k_phases
        any_query = q_least <= q_most
        may, must = (k_least < self.count) & any_query, (k_most < self.count) & any_query
        if not self.mutual:
            return Verdict(may, must)
        return Verdict(may | (q_least < self.count), must | (q_most < self.count))


@dataclass(frozen=True)
class Chunks(Mask):
    """Tokens of the same stretch of ``size`` (Child et al. 2019, sec. 4.3: the fixed pattern's first head)."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a stretch holds at least one token, not {self.size}")

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.q.phase // self.size == pairs.k.phase // self.size

    def reach(self) -> Reach:
        return Reach(self.size - 1, self.size - 1)

    def verdict(self, tile: Tile) -> Verdict:
        if tile.q_phases is None or tile.k_phases is None:
            return super().verdict(tile)
        q_first, q_last = (phase // self.size for phase in tile.q_phases)
        k_first, k_last = (phase // self.size for phase in tile.k_phases)
        one = (q_first == q_last) & (k_first == k_last)
        return Verdict((q_first <= k_last) & (k_first <= q_last), one & (q_first == k_first))


@dataclass(frozen=True)
class Columns(Mask):
    """The last ``width`` keys of every ``stride`` (Child et al. 2019, sec. 4.3: the fixed pattern's second head)."""

    stride: int
    width: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.stride:
            raise ValueError(f"of {self.stride} keys the last {self.width} cannot be seen: take 1 to {self.stride}")

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.k.phase % self.stride >= self.stride - self.width) & (pairs.q.order == pairs.q.order)

    def comb(self) -> Comb:
        return Comb(self.stride, tuple(range(self.stride - self.width, self.stride)))


PRIME = 46_337  # the greatest prime whose square fits a GPU kernel's 32-bit index
WIDEST = 256  # phases of a tile of which the scattered blocks can be told exactly


@dataclass(frozen=True)
class Scattered(Mask):
    """Each block of ``size`` queries sees a few blocks drawn from those up to it (Zaheer et al. 2020, sec. 2).

    The draw is arithmetic on the block's number, so there is no table and no end: the same line serves a text of any
    length, a kernel, and one query while decoding. ``mixers`` are the coefficients of each draw; see ``drawn``.
    """

    size: int
    mixers: tuple[tuple[int, int, int], ...]

    @classmethod
    def drawn(cls, size: int, count: int, seed: int) -> Scattered:
        """``count`` blocks for every block."""
        if size < 1 or count < 0:
            raise ValueError(f"blocks of at least 1 token and zero or more of them, not {size} and {count}")
        draw = random.Random(seed)
        return cls(
            size, tuple((draw.randrange(1, PRIME), draw.randrange(PRIME), draw.randrange(PRIME)) for _ in range(count))
        )

    def _targets(self, block: Tensor) -> list[Tensor]:
        """The blocks that ``block`` sees: a line and a square modulo a prime, twice, then down to what came before."""
        found = []
        for a, b, c in self.mixers:
            x = (block % PRIME * a + b) % PRIME
            x = (x * x + c) % PRIME
            x = (x * x + b) % PRIME
            found.append(x * (block % PRIME + 1) // PRIME)
        return found

    def allows(self, pairs: Pairs) -> Tensor:
        q, k = pairs.q.phase // self.size, pairs.k.phase // self.size
        seen = (q != q) & (k != k)
        for target in self._targets(q):
            seen = seen | (k == target)
        return seen

    def verdict(self, tile: Tile) -> Verdict:
        if tile.q_phases is None or tile.k_phases is None:
            return super().verdict(tile)
        q_first, q_last = (phase // self.size for phase in tile.q_phases)
        k_first, k_last = (phase // self.size for phase in tile.k_phases)
        most = -(-WIDEST // self.size)
        may = (q_last - q_first > most) & (k_first <= k_last)  # too wide to follow: who knows
        must = torch.zeros_like(may)
        alone = (q_first == q_last) & (k_first == k_last)
        for ahead in range(most + 1):
            for target in self._targets(torch.minimum(q_first + ahead, q_last)):
                may = may | ((k_first <= target) & (target <= k_last))
                must = must | (alone & (target == k_first)) if ahead == 0 else must
        return Verdict(may, must)
