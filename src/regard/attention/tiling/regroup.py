"""Tokens regrouped by their order modulo a step, for kernels that read blocks of adjacent tokens.

With a step and no residues each residue becomes a batch row by itself: row b turns into rows b·step + r, and token i of
such a row was i·step + r. With residues, the keys of the given residues are concatenated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.masks.summary import StridePattern
from regard.attention.slots import Pairs, position_at
from regard.attention.tiling.bands import first_order


class Regrouping(NamedTuple):
    """Where the tokens of each residue are."""

    step: int
    split: bool  # each residue is a batch row
    rows: Tensor  # the first index of each group of queries
    columns: Tensor  # the first index of each group of keys
    block: int

    @classmethod
    def of(cls, pattern: StridePattern, plan: Plan, block: int, device: torch.device) -> Regrouping:
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
        return self._split(x) if self.split else x

    def keys(self, x: Tensor) -> Tensor:
        if self.split or self.plain:
            return self.queries(x)
        index = self.columns[:, None] + self.step * torch.arange(self._per_residue(x.shape[2]), device=x.device)
        return x.index_select(2, index.flatten().clamp(max=x.shape[2] - 1))

    def _split(self, x: Tensor) -> Tensor:
        whole = F.pad(x, (0, 0, 0, -x.shape[2] % self.step)).unflatten(2, (-1, self.step))  # [B, H, n, step, D]
        return whole.permute(0, 3, 1, 2, 4).flatten(0, 1)

    def back(self, x: Tensor, length: int) -> Tensor:
        """The inverse of ``queries``, for outputs of ``length`` tokens."""
        if not self.split:
            return x
        return x.unflatten(0, (-1, self.step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]

    def joined(self, *layouts: Tensor) -> tuple[Tensor, ...]:
        """Layouts [B|1, groups, Q, K] as layouts of the regrouped batch, [B'|1, Q, K].

        Residues share a layout: ``may`` (the first) of any of them, ``must`` of all; they differ by one token at most.
        """
        may, must = layouts
        if self.plain:
            return may[:, 0], must[:, 0]
        if self.split:
            return tuple(x.repeat_interleave(self.step, dim=0) if len(x) > 1 else x for x in (may.any(1), must.all(1)))
        return tuple(x.transpose(1, 2).flatten(2) for x in layouts)

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
