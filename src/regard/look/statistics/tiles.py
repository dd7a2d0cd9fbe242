"""Attention maps as images of any size: the maximum weight of each cell, one byte each.

A byte is round(255·√w): the square root resolves small weights, which are most of a long text's map.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.strips import ROWS, strip_ranges, strips
from regard.look.capture.trace import Attention
from regard.look.statistics.reducers import TileMax, pooled, reduce

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
    (rows, _), (columns, _) = cells(attention.q.shape[2], size), cells(attention.k.shape[2], size)
    measure = TileMax(rows, columns)
    reduce(attention, [measure], rows * max(1, ROWS // rows))  # strips of whole cells
    return to_bytes(measure.values[0])


def levels(attention: Attention) -> int:
    """The number of levels: at the last one, a single tile shows the whole map."""
    return 1 + max(0, (max(attention.q.shape[2], attention.k.shape[2]) - 1) // SIDE).bit_length()


def tile(attention: Attention, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
    """A square of a head's map: [up to 256, up to 256] cells of 2^level × 2^level pairs."""
    if not 0 <= level < levels(attention):
        raise UserError(f"this map has the levels 0 to {levels(attention) - 1}, not {level}")
    cell = 2**level
    rows = _stretch("row", row, cell * SIDE, attention.q.shape[2])
    columns = _stretch("column", column, cell * SIDE, attention.k.shape[2])
    shape = [-(-(part.stop - part.start) // cell) for part in (rows, columns)]
    weights = torch.zeros(*shape, dtype=torch.float32, device=attention.q.device)
    size = cell * max(1, ROWS // cell)  # strips of whole cells, each inside one tile
    inside = [part for part in strip_ranges(attention, size) if rows.start <= part.rows.start < rows.stop]
    for strip in strips(attention, head, inside):
        low, high = max(columns.start, strip.columns.start), min(columns.stop, strip.columns.stop)
        if low < high:
            part = strip.weights[:1, :, low - strip.columns.start : high - strip.columns.start]
            across, down, most = pooled(part, low - columns.start, strip.rows.start - rows.start, cell, cell)
            place = weights[down : down + most.shape[1], across : across + most.shape[2]]
            torch.maximum(place, most[0].float(), out=place)
    return to_bytes(weights)


def to_bytes(weights: Tensor) -> NDArray[np.uint8]:
    """Weights as bytes: round(255·√w)."""
    return weights.sqrt().mul(255).round().to(torch.uint8).cpu().numpy()


def _stretch(name: str, number: int, size: int, length: int) -> slice:
    count = -(-length // size)
    if not 0 <= number < count:
        raise UserError(f"at this level the map has {count} tiles along this axis: {name} is 0 to {count - 1}")
    return slice(number * size, min((number + 1) * size, length))
