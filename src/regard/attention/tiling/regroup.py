"""Tokens regrouped by their order modulo a step, for kernels that read blocks of neighbours.

With a step and no teeth each residue becomes a row of the batch by itself: row b of a batch turns into rows b·step + r,
and token i of such a row was i·step + r. With teeth the keys of each residue asked for are laid one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.masks.summary import Comb
from regard.attention.slots import Pairs, seat
from regard.attention.tiling.bands import first_order


class Group(NamedTuple):
    step: int
    split: bool  # residues are rows of their own
    rows: Tensor  # where the groups of queries begin
    columns: Tensor  # where the groups of keys begin
    block: int

    @classmethod
    def of(cls, comb: Comb, plan: Plan, block: int, device: torch.device) -> Group:
        if comb.teeth is None:
            each = torch.arange(comb.step, device=device)
            return cls(comb.step, comb.step > 1, each, each, block)
        first = [(tooth - first_order(plan.keys)) % comb.step for tooth in comb.teeth]
        return cls(
            comb.step,
            False,
            torch.zeros_like(torch.tensor([0], device=device)),
            torch.tensor(first, device=device),
            block,
        )

    @property
    def plain(self) -> bool:
        return self.step == 1

    @property
    def across(self) -> int:
        """The step between queries."""
        return self.step if self.split else 1

    def count(self, length: int, across: bool = False) -> int:
        """How many places ``length`` tokens take in a row; every tooth has whole blocks, so that none holds two."""
        if self.split:
            return -(-length // self.step)
        return length if across or self.plain else self._tooth(length) * len(self.columns)

    def _tooth(self, length: int) -> int:
        return -(-length // (self.step * self.block)) * self.block

    def queries(self, x: Tensor) -> Tensor:
        """[B, H, N, D] as the groups have it."""
        return self._split(x) if self.split else x

    def keys(self, x: Tensor) -> Tensor:
        if self.split or self.plain:
            return self.queries(x)
        index = self.columns[:, None] + self.step * torch.arange(self._tooth(x.shape[2]), device=x.device)
        return x.index_select(2, index.flatten().clamp(max=x.shape[2] - 1))

    def _split(self, x: Tensor) -> Tensor:
        whole = F.pad(x, (0, 0, 0, -x.shape[2] % self.step)).unflatten(2, (-1, self.step))  # [B, H, n, step, D]
        return whole.permute(0, 3, 1, 2, 4).flatten(0, 1)

    def back(self, x: Tensor, length: int) -> Tensor:
        """What ``queries`` undid."""
        if not self.split:
            return x
        return x.unflatten(0, (-1, self.step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]

    def joined(self, *layouts: Tensor) -> tuple[Tensor, ...]:
        """Layouts [B|1, groups, Q, K] as those of the batch that a kernel sees, [B'|1, Q, K].

        Residues share a layout: ``may`` (the first) of any of them, ``must`` of all; they differ by a token at most.
        """
        may, must = layouts
        if self.plain:
            return may[:, 0], must[:, 0]
        if self.split:
            return tuple(x.repeat_interleave(self.step, dim=0) if len(x) > 1 else x for x in (may.any(1), must.all(1)))
        return tuple(x.transpose(1, 2).flatten(2) for x in layouts)

    def pairs(self, plan: Plan, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Pairs:
        """The pair that a kernel means by these numbers."""
        row = b // self.step if self.split else b
        query, key = self._ungrouped(plan, b, q, k)
        if not self.plain:
            query, key = query.clamp(max=plan.queries.length - 1), key.clamp(max=plan.keys.length - 1)
        return Pairs(row, h, seat(plan.queries, row, query), seat(plan.keys, row, key))

    def inside(self, plan: Plan, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether both are tokens at all, not what fills up a block."""
        query, key = self._ungrouped(plan, b, q, k)
        return (query < plan.queries.length) & (key < plan.keys.length)

    def _ungrouped(self, plan: Plan, b: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Where the two were before they were regrouped; past the end for what fills up a block."""
        if self.plain:
            return q, k
        if self.split:
            return q * self.step + b % self.step, k * self.step + b % self.step
        tooth = self._tooth(plan.keys.length)
        return q, self.columns[k // tooth] + self.step * (k % tooth)
