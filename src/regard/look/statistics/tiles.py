"""Attention maps as images of any size: the maximum weight of each cell, one byte each.

The maximum, not the mean, so that a single large weight stays visible in the map of a long text. A byte is
round(255·√w): the square root resolves small weights, which are most of such a map.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.look.capture.strips import ROWS, strip_ranges, strips
from regard.look.capture.trace import Attention

SIDE = 256  # cells per side of a tile


def cells(length: int, size: int) -> tuple[int, int]:
    """Tokens per cell and number of cells, for at most ``size`` cells.

    >>> cells(4096, 64), cells(100, 64), cells(10, 64)
    ((64, 64), (2, 50), (1, 10))
    """
    each = -(-length // size)
    return each, -(-length // each)


def overview(attention: Attention, size: int) -> NDArray[np.uint8]:
    """Every head of an attention (batch size 1) in at most ``size`` cells per side: [H, cells, cells]."""
    whole = slice(0, attention.q.shape[2]), slice(0, attention.k.shape[2])
    cell = cells(whole[0].stop, size)[0], cells(whole[1].stop, size)[0]
    return np.stack([to_bytes(maxima(attention, head, whole, cell)[0]) for head in range(attention.heads)])


def levels(attention: Attention) -> int:
    """The number of levels: at the last one, a single tile shows the whole map."""
    return 1 + max(0, (max(attention.q.shape[2], attention.k.shape[2]) - 1) // SIDE).bit_length()


def tile(attention: Attention, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
    """A square of a head's map: [up to 256, up to 256] cells of 2^level × 2^level pairs."""
    if not 0 <= level < levels(attention):
        raise UserError(f"this map has the levels 0 to {levels(attention) - 1}, not {level}")
    rows = _part("row", row, 2**level * SIDE, attention.q.shape[2])
    columns = _part("column", column, 2**level * SIDE, attention.k.shape[2])
    return to_bytes(maxima(attention, head, (rows, columns), (2**level, 2**level))[0])


def maxima(attention: Attention, head: int, area: tuple[slice, slice], cell: tuple[int, int]) -> Tensor:
    """The maximum weight in each cell of ``cell`` queries × keys of an area of a head's map, [B, cells, cells].

    The area starts at a multiple of the strip height.
    """
    (rows, columns), (height, width) = area, cell
    shape = [-(-(part.stop - part.start) // size) for part, size in zip(area, cell, strict=True)]
    dtype = torch.promote_types(attention.q.dtype, torch.float32)
    result = attention.q.new_zeros(attention.q.shape[0], *shape, dtype=dtype)
    ranges = strip_ranges(attention, height * max(1, ROWS // height))  # strips of whole cells
    inside = [part for part in ranges if rows.start <= part.rows.start < rows.stop]
    for strip in strips(attention, head, inside):
        low, high = max(columns.start, strip.columns.start), min(columns.stop, strip.columns.stop)
        if low < high:
            weights = strip.weights[:, :, low - strip.columns.start : high - strip.columns.start]
            down, weights = _pooled(weights, 1, strip.rows.start - rows.start, height)  # rows first: in memory order
            across, weights = _pooled(weights, 2, low - columns.start, width)
            place = result[:, down : down + weights.shape[1], across : across + weights.shape[2]]
            torch.maximum(place, weights, out=place)
    return result


def to_bytes(weights: Tensor) -> NDArray[np.uint8]:
    """Weights as bytes: round(255·√w)."""
    return weights.sqrt().mul(255).round().to(torch.uint8).cpu().numpy()


def _pooled(x: Tensor, axis: int, start: int, size: int) -> tuple[int, Tensor]:
    """The first block, and the maxima over blocks of ``size`` of an axis of x [B, q, k], which begins at ``start``."""
    before = start % size
    after = -(before + x.shape[axis]) % size
    if before or after:
        x = F.pad(x, (0, 0) * (2 - axis) + (before, after))
    return start // size, x.unflatten(axis, (-1, size)).amax(axis + 1)


def _part(name: str, number: int, size: int, length: int) -> slice:
    count = -(-length // size)
    if not 0 <= number < count:
        raise UserError(f"at this level the map has {count} tiles along this axis: {name} is 0 to {count - 1}")
    return slice(number * size, min((number + 1) * size, length))
