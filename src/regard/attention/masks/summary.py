"""What a mask says of itself, so that a fast path can skip work without looking at any pair."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Reach(NamedTuple):
    """The greatest q.order - k.order (``back``) and k.order - q.order (``ahead``) allowed; ``None``: no bound."""

    back: int | None
    ahead: int | None


class Tile(NamedTuple):
    """A block of queries and a block of keys by the least and greatest order (tensors that broadcast).

    The same for the phases of each side, where they are numbers and known.
    """

    q_low: Tensor
    q_high: Tensor
    k_low: Tensor
    k_high: Tensor
    q_phases: tuple[Tensor, Tensor] | None = None
    k_phases: tuple[Tensor, Tensor] | None = None


class Verdict(NamedTuple):
    """``may``: some pair of the tile could be allowed. ``must``: every pair surely is."""

    may: Tensor
    must: Tensor


class Keeps(NamedTuple):
    """Which keys a text that grows may still ask for: its ``first`` ones and those up to ``back`` before a query.

    Allowed implies k.order < first or q.order - k.order <= back, for texts whose phase is their order. ``None``: all.
    """

    first: int
    back: int | None


class Comb(NamedTuple):
    """Which keys are left when tokens are regrouped by their order modulo ``step`` (1: all of them).

    ``teeth`` None: allowed pairs are a multiple of ``step`` apart, so that each residue is a text of its own. Else only
    keys whose phase leaves one of these residues are ever seen, which tells their place unless texts are packed.
    """

    step: int
    teeth: tuple[int, ...] | None = None

    @property
    def share(self) -> float:
        """Of all keys, how many a query has left."""
        return (1 if self.teeth is None else len(self.teeth)) / self.step


def farther(a: int | None, b: int | None) -> int | None:
    """The looser of two bounds."""
    return None if a is None or b is None else max(a, b)


def nearer(a: int | None, b: int | None) -> int | None:
    """The tighter of two bounds."""
    return b if a is None else a if b is None else min(a, b)


def fewer(one: Keeps, two: Keeps) -> Keeps:
    """Either holds: the one that keeps fewer keys."""
    if one.back is None or two.back is None:
        return two if one.back is None else one
    return one if one.first + one.back <= two.first + two.back else two
