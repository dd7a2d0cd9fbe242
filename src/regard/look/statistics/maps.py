"""Attention maps as images of any size, and their product through all layers (rollout).

A cell of an image is the maximum weight in it, one byte: not the mean, so that a single large weight stays visible in
the map of a long text. A byte is round(255·√w): the square root resolves small weights, which are most of such a map.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.look.capture.observe import Attention
from regard.look.capture.strips import ROWS, strip, strip_ranges

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


def coarsest_level(queries: int, keys: int) -> int:
    """The level at which a single tile shows the whole map."""
    return ((max(queries, keys) - 1) // SIDE).bit_length()


def tile(attention: Attention, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
    """A square of a head's map: [up to 256, up to 256] cells of 2^level × 2^level pairs."""
    coarsest = coarsest_level(attention.q.shape[2], attention.k.shape[2])
    if not 0 <= level <= coarsest:
        raise UserError(f"this map has the levels 0 to {coarsest}, not {level}")
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
    for part in strip_ranges(attention, height * max(1, ROWS // height)):  # strips of whole cells
        low, high = max(columns.start, part.columns.start), min(columns.stop, part.columns.stop)
        if low < high and rows.start <= part.rows.start < rows.stop:
            weights = strip(attention, head, part).weights
            weights = weights[:, :, low - part.columns.start : high - part.columns.start]
            down, weights = _pooled(weights, 1, part.rows.start - rows.start, height)  # rows first: in memory order
            across, weights = _pooled(weights, 2, low - columns.start, width)
            place = result[:, down : down + weights.shape[1], across : across + weights.shape[2]]
            torch.maximum(place, weights, out=place)
    return result


def to_bytes(weights: Tensor) -> NDArray[np.uint8]:
    """Weights as bytes: round(255·√w), for those above 1 (not every mechanism normalizes them) 255."""
    return weights.clamp(max=1).sqrt().mul(255).round().to(torch.uint8).cpu().numpy()


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


@torch.no_grad()
def rollout(attentions: Sequence[Attention], size: int = 256) -> NDArray[np.float32]:
    """The weight of each token on each other one through all layers (Abnar & Zuidema 2020, sec. 3).

    Ã_l = (W_l + I)/2 with W_l the mean over heads, where the identity is the residual path; the rollout of the
    self-attentions of one stack of layers is Ã_L ⋯ Ã_1, [up to size, up to size]. Long texts are pooled: rows are means
    of neighbors, columns their sums, so that a row still sums to one. The product is computed from the last layer to
    the first, strip by strip, and no N×N matrix is in memory.
    """
    length, device = attentions[0].q.shape[2], attentions[0].load().q.device
    each, count = cells(length, size)
    group = torch.arange(length, device=device) // each
    through = F.one_hot(group, count).T / group.bincount()[:, None]  # [count, length], the means of neighbors
    for one in reversed(attentions):
        attention = one.load()
        heads, before = range(attention.heads), through / 2
        for part in strip_ranges(attention):
            weights = torch.stack([strip(attention, head, part).weights[0].float() for head in heads]).mean(0)
            before[:, part.columns].add_(through[:, part.rows] @ weights, alpha=0.5)
        through = before
    return F.pad(through, (0, count * each - length)).unflatten(1, (count, each)).sum(-1).cpu().numpy()
