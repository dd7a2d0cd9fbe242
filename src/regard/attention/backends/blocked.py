"""The blocked backend: the reference for one block of queries at a time, for long rows that no fused kernel supports.

Top-k, a soft cap or a learned score need whole rows of scores, but not all rows at once. Each block computes its rows
and stores only the mixed values; the backward pass computes them again (Chen et al. 2016), so that memory is
O(N · block) in both directions. Keys beyond a mask's reach are never read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.call import Call, Out, Plan
from regard.attention.slots import Packed, Padded, Pairs, Range
from regard.attention.tiling.bands import first_order
from regard.attention.tiling.tile import Tile
from regard.attention.weigh import mix

SCORES = 2**22  # scores of one head in one block
FEWEST, MOST = 16, 512  # rows of a block


Visible = Callable[[Tile, Pairs], Tensor]  # the allowed pairs of a block, [B, H, q, k]


def mix_in_blocks(call: Call, visible: Visible | None = None) -> Tensor:
    """The weighted values [B, H, Q, E]; of each block only these are stored for the backward pass.

    ``visible`` gives the pairs to consider (default: those that the plan's mask allows).
    """

    def work(tile: Tile) -> Tensor:
        pairs = tile.pairs(call.plan, heads=call.q.shape[1], batch=call.q.shape[0], device=call.q.device)
        return mix(tile.cut(call), pairs, None if visible is None else visible(tile, pairs)).values

    blocks = cut(call.plan)
    if len(blocks) == 1:
        return work(blocks[0])
    again = torch.is_grad_enabled()
    return torch.cat([checkpoint(work, b, use_reentrant=False) if again else work(b) for b in blocks], dim=2)


def cut(plan: Plan) -> list[Tile]:
    """The blocks of a plan: the fewer rows, the more keys there are."""
    queries, keys, (back, ahead) = plan.queries, plan.keys, plan.mask.reach()
    size = min(MOST, max(FEWEST, SCORES // max(1, keys.length)))
    consecutive = all(isinstance(slots, Range | Padded | Packed) for slots in (queries, keys))
    shift = first_order(queries) - first_order(keys) if consecutive else 0
    blocks = []
    for low in range(0, max(1, queries.length), size):
        high = min(low + size, queries.length)
        start = 0 if back is None or not consecutive else max(0, low + shift - back)
        stop = keys.length if ahead is None or not consecutive else min(keys.length, high + shift + ahead)
        if start >= stop:  # nothing to see: any key will do, since none is allowed
            start, stop = 0, 1
        blocks.append(Tile(plan.mask, slice(low, high), (slice(start, stop),)))
    return blocks


class Blocked:
    """Everything the reference does except returning the weights, which would be all the memory it saves."""

    name = "blocked"

    def refuses(self, call: Call) -> list[str]:
        return ["it stores no weights"] if call.weights else []

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        return Out(mix_in_blocks(call), None)
