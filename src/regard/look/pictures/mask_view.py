"""A mask over one text in numbers: the allowed share of each cell and tile, and the computed tiles.

Counts come from ``Mask.allows``, a few rows at a time; the layout of tiles from ``Mask.verdict`` alone, which fast
paths use. Where the two differ, the block bounds are loose: a tile without any allowed pair is computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import BlockBounds, Explanation, Mask, Plan, Range, Softmax, explain
from regard.attention.slots import make_pairs
from regard.errors import UserError

LONGEST = 16_384  # tokens; the mask is evaluated for every pair
PAIRS = 2**22  # pairs evaluated at a time
EMPTY, PARTIAL, FULL = 0, 1, 2


class MaskView(NamedTuple):
    """A mask over ``length`` tokens that attend to each other."""

    mask: Mask
    length: int
    cell: int  # tokens per cell, on both axes
    share: Tensor  # [cells, cells], the share of a cell's pairs that is allowed
    block: int  # tokens per side of a tile
    layout: Tensor  # [tiles, tiles], EMPTY, PARTIAL or FULL by the mask's own verdict
    needed: int  # tiles with an allowed pair
    allowed: int  # pairs
    explanation: Explanation  # the choice of the backend on this machine

    @property
    def pairs(self) -> int:
        return self.length**2

    @property
    def computed(self) -> int:
        """Tiles that are not skipped."""
        return int((self.layout != EMPTY).sum())

    def tiles(self, kind: int) -> int:
        return int((self.layout == kind).sum())


def view(mask: Mask, length: int, *, block: int = 8, most: int = 128) -> MaskView:
    """The counts of a mask over ``length`` tokens, in at most ``most`` cells per side."""
    if not 1 <= length <= LONGEST:
        raise UserError(f"a mask is drawn for 1 to {LONGEST:,} tokens, not {length:,}; choose another length")
    if block < 1:
        raise UserError(f"a tile has at least 1 token per side, not {block}")
    cell = -(-length // most)
    try:
        cells, tiles = _counts(mask, length, cell), _counts(mask, length, block)
    except IndexError as error:
        raise UserError(f"this mask's lists are shorter than {length} tokens; choose a shorter length") from error
    slots = Range(length)
    blank = torch.zeros(1, 1, length, 1)
    call = Softmax().call(blank, blank, blank, Plan(mask, slots, slots, True))
    return MaskView(
        mask=mask,
        length=length,
        cell=cell,
        share=cells / _sizes(length, cell),
        block=block,
        layout=layout(mask, length, block),
        needed=int((tiles > 0).sum()),
        allowed=int(cells.sum()),
        explanation=explain(call),
    )


def layout(mask: Mask, length: int, block: int) -> Tensor:
    """Which tiles are empty, partial or full, from the mask's block bounds: no pair is evaluated."""
    low = torch.arange(0, length, block)
    high = (low + block).clamp(max=length) - 1
    extent = torch.stack((low, high))
    rows, columns = extent[:, :, None], extent[:, None, :]
    verdict = mask.verdict(BlockBounds(*rows, *columns, q_phases=rows, k_phases=columns))  # here a phase is its order
    shape = (low.shape[0], low.shape[0])
    return (verdict.may.expand(shape).int() + (verdict.may & verdict.must).expand(shape).int()).cpu()


def _counts(mask: Mask, length: int, size: int) -> Tensor:
    """How many pairs of each square of ``size`` tokens are allowed: [squares, squares]."""
    squares = -(-length // size)
    counts = torch.zeros(squares, squares, dtype=torch.long)
    column = torch.arange(length) // size
    step = max(1, PAIRS // length // size) * size  # whole squares at a time
    for low in range(0, length, step):
        rows = slice(low, min(low + step, length))
        pairs = make_pairs(Range(length), Range(length), heads=1, device=torch.device("cpu"), batch=1, rows=rows)
        seen = mask.allows(pairs).expand(1, 1, rows.stop - low, length)[0, 0].long()
        narrow = seen.new_zeros(seen.shape[0], squares).index_add_(1, column, seen)
        counts.index_add_(0, torch.arange(low, rows.stop) // size, narrow)
    return counts


def _sizes(length: int, size: int) -> Tensor:
    """The number of pairs in each square; those at the end are smaller."""
    side = torch.arange(length).div(size, rounding_mode="floor").bincount()
    return side[:, None] * side[None, :]
