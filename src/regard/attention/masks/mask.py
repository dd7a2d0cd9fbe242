"""Masks: an algebra of which query may see which key.

A mask is a value. ``allows(pairs)`` is its meaning; ``&``, ``|`` and ``~`` build an expression tree. Bounds let a fast
path skip work without evaluating any pair:

* ``reach()``           the farthest allowed key before and after a query, in order; ``None`` where there is no bound
* ``verdict(bounds)``   for a block of pairs known only by the least and greatest order on each side: may any pair be
                        allowed, must all be? Three-valued logic gives this for every expression in O(blocks).
* ``retention()``       the keys that later queries of a growing text may still see: what a KV cache must hold
* ``stride_pattern()``  whether only every n-th key is visible; regrouped by residue, those keys are adjacent
* ``relative``          whether the distance alone decides, so that all blocks along a diagonal are equal

Bounds may be loose, never wrong: tests/laws/test_masks.py compares them with ``allows``. The masks themselves are in
patterns.py (formulas) and tables.py (tensors, and labels computed from the tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.slots import Pairs


class Reach(NamedTuple):
    """The greatest q.order - k.order (``back``) and k.order - q.order (``ahead``) allowed; ``None``: no bound."""

    back: int | None
    ahead: int | None


class BlockBounds(NamedTuple):
    """A block of queries and a block of keys by their least and greatest order (tensors that broadcast).

    ``q_phases`` and ``k_phases`` [2, ...] are the same for phases, where these have one axis and are known.
    """

    q_low: Tensor
    q_high: Tensor
    k_low: Tensor
    k_high: Tensor
    q_phases: Tensor | None = None
    k_phases: Tensor | None = None


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


class Mask:
    """Base of all masks. A new one is a frozen dataclass with ``allows``; the bounds default to "anything"."""

    relative = False
    needs_tokens = False  # follows from the tokens: a model must ``bind`` it in every forward pass

    def allows(self, pairs: Pairs) -> Tensor:
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """The number of batch rows that it distinguishes: 1 unless it holds tensors that differ by row."""
        return 1

    @property
    def distinct_heads(self) -> int:
        """The number of query heads that it distinguishes."""
        return 1

    @property
    def table_length(self) -> int | None:
        """The number of tokens that its tables describe; None: any number."""
        return None

    def reach(self) -> Reach:
        return Reach(None, None)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        shape = torch.broadcast_shapes(bounds.q_low.shape, bounds.k_low.shape)
        no = torch.zeros(shape, dtype=torch.bool, device=bounds.q_low.device)
        return BlockVerdict(~no, no)

    def retention(self) -> KeyRetention:
        return KeyRetention(0, self.reach().back)

    def stride_pattern(self) -> StridePattern:
        return StridePattern(1)

    def to(self, device: torch.device) -> Mask:
        """The mask with its tensors on ``device``."""
        return self

    def bind(self, tokens: Tensor, phases: Tensor | None = None) -> Mask:
        """The mask for these tokens [B, N], where the token of order i is at index i.

        ``phases`` [B|1, N] count from the beginning of each packed document. Default: one document per row.
        """
        return self

    def __and__(self, other: Mask) -> Mask:
        if isinstance(other, Full):
            return self
        return other if isinstance(self, Full) else And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)

    def __str__(self) -> str:
        from regard.attention.masks.expression import write  # which imports this file

        return write(self, brief=True)

    def _repr_html_(self) -> str | None:
        """A picture in a notebook, as `regard mask` draws it."""
        from regard.attention.masks.picture import mask_html

        return mask_html(self)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    relative = True

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.q.order == pairs.q.order

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        yes = (bounds.q_low <= bounds.q_high) & (bounds.k_low <= bounds.k_high)
        return BlockVerdict(yes, yes)


class _Combined(Mask):
    """Masks combined by an operator."""

    @property
    def operands(self) -> tuple[Mask, ...]:
        raise NotImplementedError

    @property
    def rows(self) -> int:
        return max(one.rows for one in self.operands)

    @property
    def distinct_heads(self) -> int:
        return max(one.distinct_heads for one in self.operands)

    @property
    def table_length(self) -> int | None:
        return min((one.table_length for one in self.operands if one.table_length is not None), default=None)

    @property
    def relative(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(one.relative for one in self.operands)

    @property
    def needs_tokens(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(one.needs_tokens for one in self.operands)

    def to(self, device: torch.device) -> Mask:
        return self._with(*(one.to(device) for one in self.operands))

    def bind(self, tokens: Tensor, phases: Tensor | None = None) -> Mask:
        return self._with(*(one.bind(tokens, phases) for one in self.operands))

    def _with(self, *operands: Mask) -> Mask:
        same = all(one is other for one, other in zip(operands, self.operands, strict=True))
        return self if same else type(self)(*operands)


@dataclass(frozen=True)
class _Pair(_Combined):
    left: Mask
    right: Mask

    @property
    def operands(self) -> tuple[Mask, ...]:
        return self.left, self.right


@dataclass(frozen=True)
class And(_Pair):
    """Both allow the pair."""

    def allows(self, pairs: Pairs) -> Tensor:
        return self.left.allows(pairs) & self.right.allows(pairs)

    def reach(self) -> Reach:
        (a, b), (c, d) = self.left.reach(), self.right.reach()
        return Reach(tighter(a, c), tighter(b, d))

    def retention(self) -> KeyRetention:
        return fewer(self.left.retention(), self.right.retention())

    def stride_pattern(self) -> StridePattern:
        return min(self.left.stride_pattern(), self.right.stride_pattern(), key=lambda pattern: pattern.share)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        one, two = self.left.verdict(bounds), self.right.verdict(bounds)
        return BlockVerdict(one.may & two.may, one.must & two.must)


@dataclass(frozen=True)
class Or(_Pair):
    """Either allows the pair."""

    def allows(self, pairs: Pairs) -> Tensor:
        return self.left.allows(pairs) | self.right.allows(pairs)

    def reach(self) -> Reach:
        (a, b), (c, d) = self.left.reach(), self.right.reach()
        return Reach(looser(a, c), looser(b, d))

    def retention(self) -> KeyRetention:
        (a, b), (c, d) = self.left.retention(), self.right.retention()
        return KeyRetention(max(a, c), looser(b, d))

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        one, two = self.left.verdict(bounds), self.right.verdict(bounds)
        return BlockVerdict(one.may | two.may, one.must | two.must)


@dataclass(frozen=True)
class Not(_Combined):
    """The pairs that ``inner`` does not allow. Empty slots stay invisible: validity is not part of the tree."""

    inner: Mask

    @property
    def operands(self) -> tuple[Mask, ...]:
        return (self.inner,)

    def allows(self, pairs: Pairs) -> Tensor:
        return ~self.inner.allows(pairs)

    def verdict(self, bounds: BlockBounds) -> BlockVerdict:
        inner = self.inner.verdict(bounds)
        return BlockVerdict(~inner.must, ~inner.may)
