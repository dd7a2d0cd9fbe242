"""The blocked backend: the reference a block of queries at a time, for long rows that no fused kernel can do.

A cut to the best keys, a soft cap or a learned score needs whole rows of scores, but not all rows at once. Each block
computes its rows and keeps only their mix; the backward pass computes them again (Chen et al. 2016), so that memory is
O(N · block) in both directions. Keys beyond a mask's reach are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.attention.backends.reference import weigh
from regard.attention.call import Call, Out, Plan, allowed
from regard.attention.slots import AnySlots, Packed, Padded, Pairs, Range, make_pairs

SCORES = 2**22  # of one head in one block
FEWEST, MOST = 16, 512  # rows of a block


class Block(NamedTuple):
    """A block of queries, and the stretch of keys that holds everything they may see."""

    rows: slice
    columns: slice

    def pairs(self, plan: Plan, q: Tensor) -> Pairs:
        """Its pairs, for all rows and heads of q [B, H, Q, D]."""
        return make_pairs(
            plan.queries,
            plan.keys,
            heads=q.shape[1],
            device=q.device,
            batch=q.shape[0],
            rows=self.rows,
            columns=self.columns,
        )


def in_blocks(plan: Plan, work: Callable[[Block], Tensor]) -> Tensor:
    """``work`` [B, H, q, E] of every block, joined along the queries; nothing inside it is kept for the backward."""
    blocks = cut(plan)
    if len(blocks) == 1:
        return work(blocks[0])
    again = torch.is_grad_enabled()
    return torch.cat([checkpoint(work, b, use_reentrant=False) if again else work(b) for b in blocks], dim=2)


def cut(plan: Plan) -> list[Block]:
    """The blocks of a plan: the fewer rows, the more keys there are."""
    queries, keys, (back, ahead) = plan.queries, plan.keys, plan.mask.reach()
    size = min(MOST, max(FEWEST, SCORES // max(1, keys.length)))
    consecutive = all(isinstance(slots, Range | Padded | Packed) for slots in (queries, keys))
    shift = _first(queries) - _first(keys) if consecutive else 0
    blocks = []
    for low in range(0, max(1, queries.length), size):
        high = min(low + size, queries.length)
        start = 0 if back is None or not consecutive else max(0, low + shift - back)
        stop = keys.length if ahead is None or not consecutive else min(keys.length, high + shift + ahead)
        if start >= stop:  # nothing to see: any key will do, since none is allowed
            start, stop = 0, 1
        blocks.append(Block(slice(low, high), slice(start, stop)))
    return blocks


def _first(slots: AnySlots) -> int:
    return slots.start if isinstance(slots, Range) else 0


class Blocked:
    """Everything the reference can do but tell the weights: those would be all the memory it saves."""

    name = "blocked"

    def refuses(self, call: Call) -> list[str]:
        return ["it keeps no weights"] if call.weights else []

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        def work(block: Block) -> Tensor:
            pairs = block.pairs(call.plan, call.q)
            q, k, v = call.q[:, :, block.rows], *near(call.q, call.k, call.v, block)
            scores = call.score(q, k) * call.factor
            if call.bias is not None:
                scores = call.bias.adjust(scores, pairs)
            seen = allowed(call.plan.mask, pairs).expand(scores.shape)
            return mixed(weigh(scores, seen, call.temperature, call.cut), v, call.dropout)

        return Out(in_blocks(call.plan, work), None)


def near(q: Tensor, k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """The keys and values of a block, one head of them for every query head."""
    shared = q.shape[1] // k.shape[1]
    k, v = k[:, :, block.columns], v[:, :, block.columns]
    return (k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)) if shared > 1 else (k, v)


def mixed(weights: Tensor, v: Tensor, dropout: float) -> Tensor:
    return (F.dropout(weights, dropout) if dropout else weights) @ v
