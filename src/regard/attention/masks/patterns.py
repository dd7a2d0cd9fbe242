"""Masks given by a formula of order and phase: causal, windows, strides, and the sparse patterns of the literature.

Those that count from the beginning of a text use phases, which restart with each packed document.
"""

import random
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from regard.attention.masks.mask import BlockBounds, BlockVerdict, KeyRetention, Mask, Reach, StridePattern
from regard.attention.slots import Pairs


@dataclass(frozen=True)
class Causal(Mask):
    """No query sees a later key, by order.

    Slots count from 0 on both sides unless they say otherwise. So with Q != K the mask is aligned to the upper left:
    query 0 sees key 0 only. To align it to the lower right, where the queries are the last Q of K tokens, give the
    queries their orders: ``attend(q, k, v, Causal(), queries=Range(Q, start=K - Q))``.
    """

    relative = True

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.k.order <= pairs.q.order

    def reach(self) -> Reach:
        return Reach(None, 0)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        return BlockVerdict(bounds.k_low <= bounds.q_high, bounds.k_high <= bounds.q_low)


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

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        least, greatest = bounds.q_low - bounds.k_high, bounds.q_high - bounds.k_low
        return BlockVerdict(
            (least < self.size) & (greatest >= -self.ahead), (greatest < self.size) & (least >= -self.ahead)
        )


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

    def stride_pattern(self) -> StridePattern:
        return StridePattern(self.step)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        verdict = Window(self.size * self.step, self.ahead * self.step).verdict(bounds)
        return verdict if self.step == 1 else BlockVerdict(verdict.may, torch.zeros_like(verdict.must))


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

    def stride_pattern(self) -> StridePattern:
        return StridePattern(self.stride)


@dataclass(frozen=True)
class Prefix(Mask):
    """Keys among the first ``length``: ``Causal() | Prefix(n)`` is the prefix language model."""

    length: int

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.k.order < self.length) & (pairs.q.order == pairs.q.order)

    def retention(self) -> KeyRetention:
        return KeyRetention(self.length, 0)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        any_query = bounds.q_low == bounds.q_low
        return BlockVerdict((bounds.k_low < self.length) & any_query, (bounds.k_high < self.length) & any_query)


@dataclass(frozen=True)
class Global(Mask):
    """Tokens at these orders see every token and are visible to every token (Beltagy et al. 2020)."""

    orders: tuple[int, ...]

    def allows(self, pairs: Pairs) -> Tensor:
        return self._among(pairs.q.order, pairs.q.order) | self._among(pairs.k.order, pairs.k.order)

    def _among(self, low: Tensor, high: Tensor) -> Tensor:
        """Whether one of the orders is in the range from ``low`` to ``high``."""
        among = low != low
        for one in self.orders:
            among = among | ((low <= one) & (one <= high))
        return among

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        may = self._among(bounds.q_low, bounds.q_high) | self._among(bounds.k_low, bounds.k_high)
        return BlockVerdict(may, torch.zeros_like(may))

    def retention(self) -> KeyRetention:
        return KeyRetention(max(self.orders, default=-1) + 1, 0)


@dataclass(frozen=True)
class Sinks(Mask):
    """The first ``count`` tokens of each document are visible to all (Xiao et al. 2024, "attention sinks").

    ``mutual``: they see all tokens too, as Longformer's global tokens do (Beltagy et al. 2020, sec. 3.1).
    """

    count: int
    mutual: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"sinks are zero tokens or more, not {self.count}")

    def allows(self, pairs: Pairs) -> Tensor:
        seen = (pairs.k.phase < self.count) & (pairs.q.order == pairs.q.order)
        return seen | (pairs.q.phase < self.count) if self.mutual else seen

    def retention(self) -> KeyRetention:
        return KeyRetention(self.count, 0)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        if bounds.q_phases is None or bounds.k_phases is None:
            return super().verdict(bounds)
        (q_least, q_most), (k_least, k_most) = bounds.q_phases, bounds.k_phases
        any_query = q_least <= q_most
        may, must = (k_least < self.count) & any_query, (k_most < self.count) & any_query
        if not self.mutual:
            return BlockVerdict(may, must)
        return BlockVerdict(may | (q_least < self.count), must | (q_most < self.count))


@dataclass(frozen=True)
class Chunks(Mask):
    """Tokens of the same chunk of ``size`` (Child et al. 2019, sec. 4.3: the fixed pattern's first head)."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a chunk holds at least one token, not {self.size}")

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.q.phase // self.size == pairs.k.phase // self.size

    def reach(self) -> Reach:
        return Reach(self.size - 1, self.size - 1)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        if bounds.q_phases is None or bounds.k_phases is None:
            return super().verdict(bounds)
        q_first, q_last = (phase // self.size for phase in bounds.q_phases)
        k_first, k_last = (phase // self.size for phase in bounds.k_phases)
        one = (q_first == q_last) & (k_first == k_last)
        return BlockVerdict((q_first <= k_last) & (k_first <= q_last), one & (q_first == k_first))


@dataclass(frozen=True)
class Columns(Mask):
    """The last ``width`` keys of every ``stride`` (Child et al. 2019, sec. 4.3: the fixed pattern's second head)."""

    stride: int
    width: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.stride:
            raise ValueError(f"of {self.stride} keys the last {self.width} cannot be seen: use 1 to {self.stride}")

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.k.phase % self.stride >= self.stride - self.width) & (pairs.q.order == pairs.q.order)

    def stride_pattern(self) -> StridePattern:
        return StridePattern(self.stride, tuple(range(self.stride - self.width, self.stride)))


PRIME = 46_337  # the greatest prime whose square fits a GPU kernel's 32-bit index
WIDEST = 256  # phases of a block up to which the scattered targets are enumerated


@dataclass(frozen=True)
class Scattered(Mask):
    """Each block of ``size`` queries sees a few blocks drawn from those up to it (Zaheer et al. 2020, sec. 2).

    The draw is arithmetic on the block's number, without a table: the same formula serves a text of any length, a
    kernel, and one query while decoding. ``mixers`` are the coefficients of each draw; see ``drawn``.
    """

    size: int
    mixers: tuple[tuple[int, int, int], ...]

    @classmethod
    def drawn(cls, size: int, count: int, seed: int) -> Self:
        """``count`` blocks for every block."""
        if size < 1 or count < 0:
            raise ValueError(f"blocks of at least 1 token and zero or more of them, not {size} and {count}")
        draw = random.Random(seed)
        return cls(
            size, tuple((draw.randrange(1, PRIME), draw.randrange(PRIME), draw.randrange(PRIME)) for _ in range(count))
        )

    def _targets(self, block: Tensor) -> list[Tensor]:
        """The blocks that ``block`` sees: a line and two squares modulo a prime, scaled down to the blocks up to it."""
        targets = []
        for a, b, c in self.mixers:
            x = (block % PRIME * a + b) % PRIME
            x = (x * x + c) % PRIME
            x = (x * x + b) % PRIME
            targets.append(x * (block % PRIME + 1) // PRIME)
        return targets

    def allows(self, pairs: Pairs) -> Tensor:
        q, k = pairs.q.phase // self.size, pairs.k.phase // self.size
        seen = (q != q) & (k != k)
        for target in self._targets(q):
            seen = seen | (k == target)
        return seen

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        if bounds.q_phases is None or bounds.k_phases is None:
            return super().verdict(bounds)
        q_first, q_last = (phase // self.size for phase in bounds.q_phases)
        k_first, k_last = (phase // self.size for phase in bounds.k_phases)
        most = -(-WIDEST // self.size)
        may = (q_last - q_first > most) & (k_first <= k_last)  # too wide to enumerate: possible
        must = torch.zeros_like(may)
        alone = (q_first == q_last) & (k_first == k_last)
        for ahead in range(most + 1):
            for target in self._targets(torch.minimum(q_first + ahead, q_last)):
                may = may | ((k_first <= target) & (target <= k_last))
                must = must | (alone & (target == k_first)) if ahead == 0 else must
        return BlockVerdict(may, must)
