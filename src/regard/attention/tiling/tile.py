"""The tiles of the score matrix that a mask needs: blocks of queries, each with the ranges of keys that they may see.

The least and greatest order, segment and phase of each block of slots give verdicts on blocks (``Mask.verdict``), and
these the tiles; only the pairs of the tiles are evaluated.
"""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Plan, allowed
from regard.attention.masks.mask import BlockBounds, BlockVerdict, Mask, Reach
from regard.attention.slots import AnySlots, Packed, Padded, Pairs, Range, first_order, make_pairs
from regard.attention.tiling.regroup import MaskPart, parts


class Tile(NamedTuple):
    """A block of queries and the ranges of keys that they read, each a slice of indices."""

    mask: Mask
    rows: slice
    columns: tuple[slice, ...]
    whole: bool = False  # every pair is allowed: no mask is needed
    visible: Tensor | None = None  # [B|1, 1|H, q, k], the allowed pairs; None: whole, causal, or not stored
    causal: bool = False  # query i sees the keys 0 ... i of the tile: a fused kernel needs no mask

    @property
    def elements(self) -> int:
        """The number of scores of one head and batch row."""
        return length(self.rows) * sum(map(length, self.columns))

    def pairs(self, plan: Plan, *, heads: int, batch: int, device: torch.device) -> Pairs:
        """The pairs of the tile, broadcastable to [B, H, q, k]."""
        size = {"heads": heads, "batch": batch, "device": device}
        return make_pairs(plan.queries, plan.keys, rows=self.rows, columns=self.columns, **size)

    def allowed(self, plan: Plan, device: torch.device) -> Tensor:
        """Which pairs of the tile are allowed, [B|1, 1|H, q, k]."""
        if self.visible is not None:
            return self.visible
        return allowed(self.mask, self.pairs(plan, heads=plan.mask.distinct_heads, batch=plan.rows, device=device))

    def keys(self, x: Tensor) -> Tensor:
        """Of keys or values [B, G, K, D] those of the tile."""
        pieces = [x[:, :, piece] for piece in self.columns]
        return torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]


def length(piece: slice) -> int:
    """The number of indices in a slice with a start and a stop."""
    return len(range(piece.start, piece.stop, piece.step or 1))


class SlotBounds(NamedTuple):
    """Per block of slots, [B|1, groups, blocks]; ``whole`` [blocks] is False for a short last block."""

    low: Tensor  # order
    high: Tensor
    first: Tensor  # segment
    last: Tensor
    phases: Tensor | None  # [2, ...], the least and the greatest; None: they have several axes
    whole: Tensor


def bounds(slots: AnySlots, device: torch.device, size: int, starts: Tensor | None = None, step: int = 1) -> SlotBounds:
    """Blocks of ``size`` slots, each ``step`` from the next, in groups that begin at ``starts`` (None: one, at 0)."""
    starts = torch.zeros(1, dtype=torch.long, device=device) if starts is None else starts
    blocks = -(-slots.length // (size * step))
    index = starts[:, None, None] + step * torch.arange(blocks * size, device=device).view(blocks, size)
    whole = (index < slots.length).all(-1).all(0)
    last = starts + (slots.length - 1 - starts).clamp(min=0) // step * step  # repeated, it moves no extreme
    index = torch.minimum(index, last[:, None, None]).clamp(max=slots.length - 1)  # a group may be empty
    rows = torch.arange(slots.rows, device=device)[:, None, None, None]
    at = slots.at(rows, index[None])
    order, segment = (x.expand(slots.rows, *index.shape) for x in (at.order, at.segment))
    phases = torch.stack((at.phase.amin(-1), at.phase.amax(-1))) if at.phase.ndim == 4 else None
    return SlotBounds(order.amin(-1), order.amax(-1), segment.amin(-1), segment.amax(-1), phases, whole)


def layout(mask: Mask, queries: SlotBounds, keys: SlotBounds) -> BlockVerdict:
    """For every block of queries and of keys of the same group, [B|1, groups, query blocks, key blocks]."""
    q_low, q_high, q_first, q_last = (x[..., None] for x in queries[:4])
    k_low, k_high, k_first, k_last = (x[..., None, :] for x in keys[:4])
    q_phases = None if queries.phases is None else queries.phases[..., None]
    k_phases = None if keys.phases is None else keys.phases[..., None, :]
    may, must = mask.verdict(BlockBounds(q_low, q_high, k_low, k_high, q_phases, k_phases))
    may = may & (q_first <= k_last) & (k_first <= q_last) & (q_last >= 0) & (k_last >= 0)
    one = (q_first == q_last) & (k_first == k_last) & (q_first == k_first) & (q_first >= 0)
    return BlockVerdict(may, must & one & queries.whole[:, None] & keys.whole)


KEPT = 2**24  # elements of stored tile masks in a plan; further masks are computed when needed


def make_tiles(plan: Plan, device: torch.device) -> tuple[tuple[Tile, ...], ...]:
    """The tiles of each disjoint part of the plan's mask, with as many stored masks as ``KEPT`` allows.

    Within a part, every query that sees something is in exactly one tile.
    """
    apart = parts(plan.mask, plan.keys.length, packed=isinstance(plan.keys, Packed))
    if torch.compiler.is_compiling():
        tiles = [by_reach(part, plan, block_size(part), part.mask.reach()) for part in apart]
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
        if visible is None and not (tile.whole or tile.causal) and plan.mask_count * tile.elements <= room:
            alike[key] = visible = tile.allowed(plan, device)
            room -= visible.numel()
        made.append(tile._replace(visible=visible))
    return made


def by_verdict(part: MaskPart, plan: Plan, device: torch.device) -> list[Tile]:
    """The tiles by the mask's verdict on every block of queries and keys."""
    host = torch.device("cpu")
    # Values on a GPU are not waited for: there, rows are assumed to be full and of one document.
    queries, keys = (s if device.type == "cpu" or isinstance(s, Range) else Range(s.length) for s in plan[1:3])
    size, (step, residues) = block_size(part), part.pattern
    rows = starts(queries, step) if residues is None else [0]
    columns = starts(keys, step, residues)
    across = step if residues is None else 1
    q = bounds(queries, host, size, torch.tensor(rows), across)
    k = bounds(keys, host, size, torch.tensor(columns), step)
    if device.type != "cpu" and (isinstance(plan.queries, Packed) or isinstance(plan.keys, Packed)):
        q, k = q._replace(phases=None), k._replace(phases=None)  # each document has its own
    may, must = (x.expand(torch.broadcast_shapes(x.shape, (1, len(columns), 1, 1))) for x in layout(part.mask, q, k))
    if type(queries) is not type(plan.queries) or type(keys) is not type(plan.keys) or plan.mask_count > 1:
        must = torch.zeros_like(must)
    some, every = may.any(0), must.all(0)
    kinds = [(some, False)]
    if not isinstance(plan.queries, Range) or not part.mask.relative:
        # Each tile needs its own mask: avoid it where all pairs are allowed.
        kinds = [(some & ~every, False), (some & every, True)]
    tiles = []
    for key_blocks, whole in kinds:
        gathered: dict[tuple[int, int], list[slice]] = {}
        for group, block, first, last in runs(key_blocks):
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


def by_reach(part: MaskPart, plan: Plan, size: int, reach: Reach) -> list[Tile]:
    """The tiles of ``size`` queries by a mask's reach alone, which a compiler can trace: numbers, no tensors."""
    queries, keys, (step, residues) = plan.queries, plan.keys, part.pattern
    apart = first_order(queries) - first_order(keys)
    across = step if residues is None else 1
    rows = starts(queries, step) if residues is None else [0]
    tiles = []
    for low in chain.from_iterable(range(row, max(1, queries.length), size * across) for row in rows):
        mine = slice(low, min(low + size * across, queries.length), across)
        begin = 0 if reach.back is None else max(0, low + apart - reach.back)
        end = keys.length if reach.ahead is None else min(keys.length, mine.stop + apart + reach.ahead)
        offsets = [low + apart] if residues is None else [residue - first_order(keys) for residue in residues]
        pieces = [slice(begin + (offset - begin) % step, end, step) for offset in offsets]
        pieces = [piece for piece in pieces if length(piece)] or [slice(0, 1, 1)]  # nothing visible: one masked key
        tiles.append(Tile(part.mask, mine, tuple(pieces)))
    return tiles


def starts(slots: AnySlots, step: int, residues: tuple[int, ...] | None = None) -> list[int]:
    """The first index of each residue of the order modulo ``step``; ``residues`` None: all of them."""
    return [(residue - first_order(slots)) % step for residue in residues or range(step)]


def consecutive(plan: Plan) -> bool:
    """Whether the orders of queries and of keys count up by 1 from a number that the host knows."""
    return isinstance(plan.queries, Range | Padded | Packed) and isinstance(plan.keys, Range | Padded | Packed)


def block_size(part: MaskPart) -> int:
    """The rows of a tile: small blocks waste less at the edges of a window, large ones less on kernel launches."""
    back, ahead = part.mask.reach()
    if back is None or ahead is None:
        return 128
    span = (back + ahead) // part.pattern.step + 1
    return min(128, max(64, 1 << (span - 1).bit_length() >> 2))
