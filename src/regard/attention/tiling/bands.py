"""Which tiles of the scores a mask needs: blocks of queries, each with the stretches of keys that it may see.

All of it comes from what the mask says of itself (summary.py); no pair is looked at but those of the tiles.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.slots import AnySlots, Packed, Range
from regard.attention.tiling.block_bounds import bounds, layout
from regard.attention.tiling.disjoint import Part, parts
from regard.attention.tiling.tile import Tile, length

KEPT = 2**24  # elements of the tiles' masks that a plan holds; what is beyond is computed when it is needed


def make_tiles(plan: Plan, device: torch.device) -> tuple[tuple[Tile, ...], ...]:
    """The tiles of each disjoint part of the plan's mask, with as many stored masks as ``KEPT`` allows.

    Within a part, every query that sees something is in exactly one tile.
    """
    apart = parts(plan.mask, plan.keys.length, packed=isinstance(plan.keys, Packed))
    if torch.compiler.is_compiling():
        found = [reached(part, plan) for part in apart]
    else:
        found = [told(part, plan, device) for part in apart]
    return tuple(tuple(with_masks(tiles, plan, device)) for tiles in found)


def with_masks(tiles: list[Tile], plan: Plan, device: torch.device) -> list[Tile]:
    """Store the masks of tiles; tiles with the same offsets share one tensor if the mask is relative."""
    plain = isinstance(plan.queries, Range) and isinstance(plan.keys, Range)
    alike: dict[tuple, Tensor] = {}
    made, room = [], KEPT
    for tile in tiles:
        start = tile.rows.start
        key = (length(tile.rows), *((c.start - start, c.stop - start, c.step) for c in tile.columns))
        visible = alike.get(key) if plain and tile.mask.relative else None
        if visible is None and not tile.whole and plan.rows * tile.elements <= room:
            alike[key] = visible = tile.allowed(plan, device)
            room -= visible.numel()
        made.append(tile._replace(visible=visible))
    return made


def told(part: Part, plan: Plan, device: torch.device) -> list[Tile]:
    """By the mask's verdict on every block of queries and keys."""
    host = torch.device("cpu")
    # What is known to a GPU only is not waited for: there, rows are taken to be full and of one document.
    queries, keys = (s if device.type == "cpu" or isinstance(s, Range) else Range(s.length) for s in plan[1:3])
    size, (step, teeth) = block_size(part, keys.length), part.comb
    rows = starts(queries, step) if teeth is None else [0]
    columns = starts(keys, step) if teeth is None else [(t - first_order(keys)) % step for t in teeth]
    across = step if teeth is None else 1
    q = bounds(queries, host, size, torch.tensor(rows), across)
    k = bounds(keys, host, size, torch.tensor(columns), step)
    if device.type != "cpu" and (isinstance(plan.queries, Packed) or isinstance(plan.keys, Packed)):
        q, k = q._replace(phases=None), k._replace(phases=None)  # each document has its own
    may, must = (x.expand(torch.broadcast_shapes(x.shape, (1, len(columns), 1, 1))) for x in layout(part.mask, q, k))
    if type(queries) is not type(plan.queries) or type(keys) is not type(plan.keys) or plan.mask.rows > 1:
        must = torch.zeros_like(must)
    some, every = may.any(0), must.all(0)
    if not isinstance(plan.queries, Range) or not part.mask.relative:  # a mask to be made for each tile: leave it out
        found = [(runs(some & ~every), False), (runs(some & every), True)]
    else:
        found = [(runs(some), False)]
    tiles = []
    for key_runs, whole in found:
        gathered: dict[tuple[int, int], list[slice]] = {}
        for group, block, first, last in key_runs:
            stop = min(columns[group] + last * size * step, keys.length)
            piece = slice(columns[group] + first * size * step, stop, step)
            if length(piece):
                gathered.setdefault((group if teeth is None else 0, block), []).append(piece)
        for (group, block), pieces in gathered.items():
            low = rows[group] + block * size * across
            mine = slice(low, min(low + size * across, queries.length), across)
            if length(mine):
                tiles.append(Tile(part.mask, mine, tuple(pieces), whole))
    return tiles


def runs(layout: Tensor) -> list[tuple[int, int, int, int]]:
    """[groups, query blocks, key blocks] booleans as (group, query block, first key block, one past the last)."""
    edges = F.pad(layout.to(torch.int8), (1, 1)).diff(dim=-1)
    first, last = (edges == 1).nonzero().tolist(), (edges == -1).nonzero()[:, 2].tolist()
    return [(*one, two) for one, two in zip(first, last, strict=True)]


def reached(part: Part, plan: Plan) -> list[Tile]:
    """By the mask's reach alone, which a compiler can follow: numbers, no tensors."""
    queries, keys, (step, teeth) = plan.queries, plan.keys, part.comb
    size, reach = block_size(part, keys.length), part.mask.reach()
    apart = first_order(queries) - first_order(keys)
    across = step if teeth is None else 1
    rows = starts(queries, step) if teeth is None else [0]
    tiles = []
    for low in chain.from_iterable(range(row, queries.length, size * across) for row in rows):
        mine = slice(low, min(low + size * across, queries.length), across)
        begin = 0 if reach.back is None else max(0, low + apart - reach.back)
        end = keys.length if reach.ahead is None else min(keys.length, mine.stop + apart + reach.ahead)
        residues = [low + apart] if teeth is None else [t - first_order(keys) for t in teeth]
        pieces = [slice(begin + (residue - begin) % step, end, step) for residue in residues]
        pieces = [piece for piece in pieces if length(piece)] or [slice(0, 1, 1)]  # nothing to see: masked as a whole
        tiles.append(Tile(part.mask, mine, tuple(pieces)))
    return tiles


def starts(slots: AnySlots, step: int) -> list[int]:
    """The first index of each residue of the order, for those that ``slots`` has."""
    return [(residue - first_order(slots)) % step for residue in range(step)]


def first_order(slots: AnySlots) -> int:
    """The order of the first slot of the kinds whose orders are consecutive."""
    return slots.start if isinstance(slots, Range) else 0


def block_size(part: Part, keys: int) -> int:
    """Small blocks waste little at the edges of a window, large ones little on the way to the kernel."""
    back, ahead = part.mask.reach()
    if back is None or ahead is None:
        return 128
    span = (back + ahead) // part.comb.step + 1
    return min(128, max(64, 1 << (span - 1).bit_length() >> 2))
