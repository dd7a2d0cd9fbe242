"""The tiles of the score matrix that a mask needs: blocks of queries, each with the ranges of keys that they may see.

They follow from the mask's bounds (masks/summary.py); only the pairs of the tiles are evaluated.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.slots import AnySlots, Packed, Range
from regard.attention.tiling.block_bounds import bounds, layout
from regard.attention.tiling.disjoint import MaskPart, parts
from regard.attention.tiling.tile import Tile, length

KEPT = 2**24  # elements of stored tile masks in a plan; further masks are computed when needed


def make_tiles(plan: Plan, device: torch.device) -> tuple[tuple[Tile, ...], ...]:
    """The tiles of each disjoint part of the plan's mask, with as many stored masks as ``KEPT`` allows.

    Within a part, every query that sees something is in exactly one tile.
    """
    apart = parts(plan.mask, plan.keys.length, packed=isinstance(plan.keys, Packed))
    if torch.compiler.is_compiling():
        tiles = [by_reach(part, plan) for part in apart]
    else:
        tiles = [by_verdict(part, plan, device) for part in apart]
    return tuple(tuple(with_masks(of_part, plan, device)) for of_part in tiles)


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


def by_verdict(part: MaskPart, plan: Plan, device: torch.device) -> list[Tile]:
    """The tiles by the mask's verdict on every block of queries and keys."""
    host = torch.device("cpu")
    # Values on a GPU are not waited for: there, rows are assumed to be full and of one document.
    queries, keys = (s if device.type == "cpu" or isinstance(s, Range) else Range(s.length) for s in plan[1:3])
    size, (step, residues) = block_size(part, keys.length), part.pattern
    rows = starts(queries, step) if residues is None else [0]
    columns = starts(keys, step) if residues is None else [(t - first_order(keys)) % step for t in residues]
    across = step if residues is None else 1
    q = bounds(queries, host, size, torch.tensor(rows), across)
    k = bounds(keys, host, size, torch.tensor(columns), step)
    if device.type != "cpu" and (isinstance(plan.queries, Packed) or isinstance(plan.keys, Packed)):
        q, k = q._replace(phases=None), k._replace(phases=None)  # each document has its own
    may, must = (x.expand(torch.broadcast_shapes(x.shape, (1, len(columns), 1, 1))) for x in layout(part.mask, q, k))
    if type(queries) is not type(plan.queries) or type(keys) is not type(plan.keys) or plan.mask.rows > 1:
        must = torch.zeros_like(must)
    some, every = may.any(0), must.all(0)
    if (
        not isinstance(plan.queries, Range) or not part.mask.relative
    ):  # each tile needs its own mask: avoid it where all pairs are allowed
        kinds = [(runs(some & ~every), False), (runs(some & every), True)]
    else:
        kinds = [(runs(some), False)]
    tiles = []
    for key_runs, whole in kinds:
        gathered: dict[tuple[int, int], list[slice]] = {}
        for group, block, first, last in key_runs:
            stop = min(columns[group] + last * size * step, keys.length)
            piece = slice(columns[group] + first * size * step, stop, step)
            if length(piece):
                gathered.setdefault((group if residues is None else 0, block), []).append(piece)
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


def by_reach(part: MaskPart, plan: Plan) -> list[Tile]:
    """The tiles by the mask's reach alone, which a compiler can trace: numbers, no tensors."""
    queries, keys, (step, residues) = plan.queries, plan.keys, part.pattern
    size, reach = block_size(part, keys.length), part.mask.reach()
    apart = first_order(queries) - first_order(keys)
    across = step if residues is None else 1
    rows = starts(queries, step) if residues is None else [0]
    tiles = []
    for low in chain.from_iterable(range(row, queries.length, size * across) for row in rows):
        mine = slice(low, min(low + size * across, queries.length), across)
        begin = 0 if reach.back is None else max(0, low + apart - reach.back)
        end = keys.length if reach.ahead is None else min(keys.length, mine.stop + apart + reach.ahead)
        offsets = [low + apart] if residues is None else [residue - first_order(keys) for residue in residues]
        pieces = [slice(begin + (offset - begin) % step, end, step) for offset in offsets]
        pieces = [piece for piece in pieces if length(piece)] or [slice(0, 1, 1)]  # nothing visible: one masked key
        tiles.append(Tile(part.mask, mine, tuple(pieces)))
    return tiles


def starts(slots: AnySlots, step: int) -> list[int]:
    """The first index of each residue of the order."""
    return [(residue - first_order(slots)) % step for residue in range(step)]


def first_order(slots: AnySlots) -> int:
    """The order of the first slot of the kinds whose orders are consecutive."""
    return slots.start if isinstance(slots, Range) else 0


def block_size(part: MaskPart, keys: int) -> int:
    """The rows of a tile: small blocks waste less at the edges of a window, large ones less on kernel launches."""
    back, ahead = part.mask.reach()
    if back is None or ahead is None:
        return 128
    span = (back + ahead) // part.pattern.step + 1
    return min(128, max(64, 1 << (span - 1).bit_length() >> 2))
