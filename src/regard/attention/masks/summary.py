"""Bounds on a mask, from which a fast path knows what to skip without evaluating any pair."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Reach(NamedTuple):
    """The greatest q.order - k.order (``back``) and k.order - q.order (``ahead``) allowed; ``None``: no bound."""

    back: int | None
    ahead: int | None


class BlockBounds(NamedTuple):
    """A block of queries and a block of keys by their least and greatest order (tensors that broadcast).

    ``q_phases`` and ``k_phases`` are the same for phases, where these have one axis and are known.
    """

    q_low: Tensor
    q_high: Tensor
    k_low: Tensor
    k_high: Tensor
    q_phases: tuple[Tensor, Tensor] | None = None
    k_phases: tuple[Tensor, Tensor] | None = None


class BlockVerdict(NamedTuple):
    """``may``: some pair of the block could be allowed. ``must``: every pair is allowed."""

    may: Tensor
    must: Tensor


class KeyRetention(NamedTuple):
    """The keys that later queries of a growing text may still see: the ``first`` ones and those up to ``back`` before.

    Allowed implies k.order < first or q.order - k.order <= back, for texts whose phase is their order. ``None``: all.
    """

    first: int
    back: int | None


class StridePattern(NamedTuple):
    """The keys that remain when tokens are regrouped by their order modulo ``step`` (1: all of them).

    ``residues`` None: allowed pairs are a multiple of ``step`` apart, so that each residue is a sequence by itself.
    Otherwise only keys whose phase has one of these residues are ever visible; unless sequences are packed, that gives
    their indices.
    """

    step: int
    residues: tuple[int, ...] | None = None

    @property
    def share(self) -> float:
        """The fraction of all keys that remain for a query."""
        return (1 if self.residues is None else len(self.residues)) / self.step


def looser(a: int | None, b: int | None) -> int | None:
    """The looser of two bounds."""
    return None if a is None or b is None else max(a, b)


def tighter(a: int | None, b: int | None) -> int | None:
    """The tighter of two bounds."""
    return b if a is None else a if b is None else min(a, b)


def fewer(one: KeyRetention, two: KeyRetention) -> KeyRetention:
    """Where both hold, the one that retains fewer keys."""
    if one.back is None or two.back is None:
        return two if one.back is None else one
    return one if one.first + one.back <= two.first + two.back else two
