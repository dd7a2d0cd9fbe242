"""A mask as disjoint parts, each with the regrouping of tokens under which its keys are adjacent.

``Window(64) | Strided(64)`` has no blocks to skip: some query of every block sees some key of every other. Its parts
have: the window is a band, and the rest is, among the tokens of one residue modulo 64, a short sequence by itself
(Child et al. 2019, sec. 4.2, compute it in the same way). Softmaxes over disjoint parts are merged exactly by their
log-sum-exp. A compiler can trace all of this, but no operator between masks: hence ``And``, ``Or`` and ``Not`` by name.

``Regrouping`` is that of whole tensors, for kernels that read blocks of adjacent tokens; ``banded`` takes slices. With
a step and no residues each residue becomes a batch row by itself: row b turns into rows b·step + r, and token i of such
a row was i·step + r. With residues, the keys of the given residues are concatenated.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.masks.mask import And, Mask, Not, Or, StridePattern
from regard.attention.slots import Pairs, first_order, position_at

NARROW = 128  # a mask that spans at most this many keys is not worth a regrouping on a CPU
MOST = 16  # alternatives of an expression that is multiplied out


class MaskPart(NamedTuple):
    mask: Mask
    pattern: StridePattern


def parts(mask: Mask, keys: int, narrow: int = NARROW, packed: bool = False) -> tuple[MaskPart, ...]:
    """Disjoint masks whose union is ``mask``, over ``keys`` keys; one alone if regrouping gains nothing.

    A mask that spans at most ``narrow`` keys is not regrouped. ``packed``: a key's index does not determine its phase.
    """
    divided: list[MaskPart] = []
    for alternative in alternatives(mask):
        pattern = alternative.stride_pattern()
        if span(alternative, keys) <= narrow or (packed and pattern.residues is not None):
            pattern = StridePattern(1)
        equal = [i for i, part in enumerate(divided) if part.pattern == pattern]
        if equal:
            divided[equal[0]] = MaskPart(Or(divided[equal[0]].mask, alternative), pattern)
        else:  # the part without regrouping comes first: it is the cheapest to exclude from the others
            divided.insert(0 if pattern.step == 1 else len(divided), MaskPart(alternative, pattern))
    if len(divided) == 1:
        return (MaskPart(mask, divided[0].pattern),)
    disjoint, taken = [divided[0]], divided[0].mask
    for part in divided[1:]:
        disjoint.append(MaskPart(And(part.mask, Not(taken)), part.pattern))
        taken = Or(taken, part.mask)
    return tuple(disjoint)


def alternatives(mask: Mask) -> list[Mask]:
    """Masks whose union is ``mask``: Or is split, And multiplied out."""
    if isinstance(mask, Or):
        return alternatives(mask.left) + alternatives(mask.right)
    if isinstance(mask, And):
        left, right = alternatives(mask.left), alternatives(mask.right)
        if 1 < len(left) * len(right) <= MOST:
            return [And(one, two) for one in left for two in right]
    return [mask]


def span(mask: Mask, keys: int) -> int:
    """The greatest number of keys between the first and the last that a query sees."""
    back, ahead = mask.reach()
    return keys if back is None or ahead is None else min(keys, back + ahead + 1)


def share(mask: Mask, keys: int) -> float:
    """The fraction of all keys that is read for a query after regrouping."""
    return sum(span(part.mask, keys) * part.pattern.share for part in parts(mask, keys)) / max(1, keys)


def merged(results: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The values of the joint softmax over disjoint sets of keys, from the values and log-sum-exp [B, H, Q] over each.

    (Milakov and Gimelshein 2018, sec. 3.1.) A log-sum-exp of -inf: no visible key.
    """
    lse = torch.stack([total for _, total in results])
    share = (lse - lse.detach().amax(0).clamp(min=torch.finfo(lse.dtype).min)).exp()
    total = share.sum(0)
    share = share / total.masked_fill(total == 0, 1)
    weighted = [values * part[..., None].to(values.dtype) for (values, _), part in zip(results, share, strict=True)]
    return sum(weighted)  # pyright: ignore[reportReturnType]


class Regrouping(NamedTuple):
    """Where the tokens of each residue are."""

    step: int
    split: bool  # each residue is a batch row
    rows: Tensor  # the first index of each group of queries
    columns: Tensor  # the first index of each group of keys
    block: int

    @classmethod
    def of(cls, pattern: StridePattern, plan: Plan, block: int, device: torch.device) -> Self:
        if pattern.residues is None:
            each = torch.arange(pattern.step, device=device)
            return cls(pattern.step, pattern.step > 1, each, each, block)
        first = [(residue - first_order(plan.keys)) % pattern.step for residue in pattern.residues]
        start = torch.zeros(1, dtype=torch.long, device=device)
        return cls(pattern.step, False, start, torch.tensor(first, device=device), block)

    @property
    def plain(self) -> bool:
        return self.step == 1

    @property
    def across(self) -> int:
        """The step between queries."""
        return self.step if self.split else 1

    def count(self, length: int, across: bool = False) -> int:
        """The number of indices for ``length`` tokens; each residue has whole blocks, so that no block holds two."""
        if self.split:
            return -(-length // self.step)
        return length if across or self.plain else self._per_residue(length) * len(self.columns)

    def _per_residue(self, length: int) -> int:
        return -(-length // (self.step * self.block)) * self.block

    def queries(self, x: Tensor) -> Tensor:
        """Queries [B, H, N, D], regrouped."""
        if not self.split:
            return x
        whole = F.pad(x, (0, 0, 0, -x.shape[2] % self.step)).unflatten(2, (-1, self.step))  # [B, H, n, step, D]
        return whole.permute(0, 3, 1, 2, 4).flatten(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        if self.split or self.plain:
            return self.queries(x)
        index = self.columns[:, None] + self.step * torch.arange(self._per_residue(x.shape[2]), device=x.device)
        return x.index_select(2, index.flatten().clamp(max=x.shape[2] - 1))

    def back(self, x: Tensor, length: int) -> Tensor:
        """The inverse of ``queries``, for outputs of ``length`` tokens."""
        if not self.split:
            return x
        return x.unflatten(0, (-1, self.step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]

    def joined(self, may: Tensor, must: Tensor) -> tuple[Tensor, ...]:
        """Layouts [B|1, groups, Q, K] as layouts of the regrouped batch, [B'|1, Q, K].

        Residues share a layout: ``may`` of any of them, ``must`` of all; they differ by one token at most.
        """
        if self.plain:
            return may[:, 0], must[:, 0]
        if self.split:
            return tuple(x.repeat_interleave(self.step, dim=0) if len(x) > 1 else x for x in (may.any(1), must.all(1)))
        return tuple(x.transpose(1, 2).flatten(2) for x in (may, must))

    def pairs(self, plan: Plan, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Pairs:
        """The pair at these indices of the regrouped batch."""
        row = b // self.step if self.split else b
        query, key = self._ungrouped(plan, b, q, k)
        if not self.plain:
            query, key = query.clamp(max=plan.queries.length - 1), key.clamp(max=plan.keys.length - 1)
        return Pairs(row, h, position_at(plan.queries, row, query), position_at(plan.keys, row, key))

    def inside(self, plan: Plan, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether both are tokens rather than padding of a block."""
        query, key = self._ungrouped(plan, b, q, k)
        return (query < plan.queries.length) & (key < plan.keys.length)

    def _ungrouped(self, plan: Plan, b: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The original indices of the two; past the end for padding of a block."""
        if self.plain:
            return q, k
        if self.split:
            return q * self.step + b % self.step, k * self.step + b % self.step
        size = self._per_residue(plan.keys.length)
        return q, self.columns[k // size] + self.step * (k % size)
