"""Tiles by quartering: a rectangle of queries and keys that a mask allows in part is cut into four, down to a size.

The result is a few large tiles that are allowed as a whole, which need no mask, and small ones along the edges of the
mask. Nothing is asked of the slots: a row may be in any order, or in pieces from several places of a text. The verdicts
are reached on the host (``Mask.verdict``), a level of quarters at a time.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.masks.mask import And, Full, Mask
from regard.attention.masks.patterns import Causal
from regard.attention.slots import AnySlots
from regard.attention.tiling.tile import Tile, bounds, layout

HOST = torch.device("cpu")


class TileSizes(NamedTuple):
    """The numbers of queries or keys in a tile."""

    largest: int  # of a tile that is allowed as a whole
    smallest: int  # at which one that is allowed in part is not cut further


def quartered(plan: Plan, sizes: TileSizes, *, causal: bool = False) -> list[Tile]:
    """The tiles of a plan whose slots are on the host. ``causal``: a tile may be a triangle of the same tokens."""
    grid = _Grid.of(plan.queries, plan.keys, sizes.smallest)
    beside = beside_causal(plan.mask) if causal and plan.same_tokens else None
    tiles, unsettled = [], None
    for level in range(grid.depth, -1, -1):
        rows, columns = grid.rows << level, grid.columns << level
        if max(rows, columns) > sizes.largest and level:
            continue
        may, must = grid.verdict(plan.mask, level)
        if unsettled is not None:
            inside = unsettled.repeat_interleave(2, 0).repeat_interleave(2, 1)[: may.shape[0], : may.shape[1]]
            may, must = may & inside, must & inside
        triangles = torch.zeros_like(must)
        if beside is not None:
            ordered = torch.diag(_ascending(plan.queries, rows))
            triangles = may & ~must & ordered & grid.verdict(beside, level)[1]
        unsettled = may & ~must & ~triangles
        kinds = [(must, True, False), (triangles, False, True)]
        for chosen, whole, triangle in kinds if level else [*kinds, (unsettled, False, False)]:
            tiles += [
                Tile(
                    plan.mask,
                    slice(i * rows, min((i + 1) * rows, plan.queries.length), 1),
                    (slice(j * columns, min((j + 1) * columns, plan.keys.length), 1),),
                    whole,
                    causal=triangle,
                )
                for i, j in chosen.nonzero().tolist()
            ]
    return tiles


def visible_keys(mask: Mask, queries: AnySlots, keys: AnySlots, smallest: int) -> Tensor:
    """The indices of the keys that some query may see, up to the size of a tile."""
    grid = _Grid.of(queries, keys, smallest)
    blocks = grid.verdict(mask, 0)[0].any(0)
    return blocks.repeat_interleave(grid.columns)[: keys.length].nonzero().flatten()


def beside_causal(mask: Mask) -> Mask | None:
    """A mask that gives ``mask`` when it is ANDed to ``Causal()``; None: there is no such mask."""
    if isinstance(mask, Causal):
        return Full()
    if isinstance(mask, And):
        for one, other in ((mask.left, mask.right), (mask.right, mask.left)):
            rest = beside_causal(one)
            if rest is not None:
                return rest & other
    return None


class _Grid(NamedTuple):
    """Queries and keys in 2^depth blocks each, the leaves; those of a level above are two of the level below."""

    queries: AnySlots
    keys: AnySlots
    depth: int
    rows: int  # queries of a leaf
    columns: int  # keys of a leaf

    @classmethod
    def of(cls, queries: AnySlots, keys: AnySlots, smallest: int) -> "_Grid":
        longest = max(queries.length, keys.length)
        depth = max(0, (-(-longest // smallest) - 1).bit_length())
        return cls(queries, keys, depth, *(max(1, -(-n // 2**depth)) for n in (queries.length, keys.length)))

    def verdict(self, mask: Mask, level: int) -> tuple[Tensor, Tensor]:
        """Whether some pair of any row may be allowed, and whether all of every row must be: [q blocks, k blocks]."""
        q, k = bounds(self.queries, HOST, self.rows << level), bounds(self.keys, HOST, self.columns << level)
        may, must = layout(mask, q, k)
        shape = torch.broadcast_shapes(may.shape, must.shape)
        return may.expand(shape).any(0)[0], must.expand(shape).all(0)[0]


def _ascending(slots: AnySlots, size: int) -> Tensor:
    """For each block of ``size`` slots whether their orders ascend in every row."""
    row = torch.arange(slots.rows)[:, None]
    order = slots.at(row, torch.arange(slots.length)[None]).order.expand(slots.rows, -1)
    falls = F.pad((order.diff(dim=1) <= 0).any(0), (0, 1))  # between slots i and i + 1
    falls[size - 1 :: size] = False  # between two blocks
    return torch.stack([~block.any() for block in falls.split(size)])
