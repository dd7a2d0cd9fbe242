"""The flex backend: one FlexAttention kernel for every mask and bias, with a block layout from structure.

``create_block_mask`` looks at every pair. Our masks know their structure, so the layout comes from the least and
greatest order of each block through ``Mask.verdict``: O(blocks), no N×N anywhere.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from regard.attend.call import Call, Out, Plan, allowed
from regard.attend.mask import Tile, Verdict
from regard.attend.sdpa import not_plain_softmax
from regard.attend.slots import AnySlots, Pairs, Range, seat

BLOCK = 128
# The default tiles of the forward kernel are made for 16 bits and no bias: at float32, or with a learned table read in
# the kernel, they outgrow a multiprocessor's memory (seen on an H200 at head width 64).
SMALL_TILES = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "fwd_num_stages": 2}


class Flex:
    """``flex_attention``, compiled. ``interpreted`` runs it without a compiler, on any device: slow, for tests."""

    name = "flex"

    def __init__(self, interpreted: bool = False):
        self.interpreted = interpreted

    def refuses(self, call: Call) -> list[str]:
        reasons = not_plain_softmax(call, takes_bias=True)
        if call.q.device.type != "cuda" and not self.interpreted:
            reasons.append("FlexAttention has no backward pass outside CUDA")
        if self.interpreted and call.q.device.type == "cpu" and any(x.requires_grad for x in (call.q, call.k, call.v)):
            reasons.append("FlexAttention has no backward pass on the CPU")
        if call.dropout:
            reasons.append("FlexAttention has no dropout")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> BlockMask:
        queries, keys = bounds(plan.queries, device), bounds(plan.keys, device)
        tile = Tile(queries.low[:, :, None], queries.high[:, :, None], keys.low[:, None, :], keys.high[:, None, :])
        may, must = plan.mask.verdict(tile)
        valid = _validity(queries, keys)
        shape = torch.broadcast_shapes(may.shape, valid.may.shape)  # [B|1, query blocks, key blocks]
        full = (must & valid.must).expand(shape)
        partial = (may & valid.may).expand(shape) & ~full
        return BlockMask.from_kv_blocks(
            *_listed(partial),
            *_listed(full),
            BLOCK_SIZE=BLOCK,
            mask_mod=_mask_mod(plan),
            seq_lengths=(plan.queries.length, plan.keys.length),
        )

    def run(self, call: Call) -> Out:
        plan, bias, temperature = call.plan, call.bias, call.temperature

        def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            pairs = Pairs(b, h, seat(plan.queries, b, q), seat(plan.keys, b, k))
            return bias.adjust(score, pairs) / temperature  # pyright: ignore[reportOptionalMemberAccess]

        options: dict[str, Any] = {
            "score_mod": None if bias is None else score_mod,
            "block_mask": plan.prepared,
            "scale": call.factor / (temperature if bias is None else 1),
            "enable_gqa": call.q.shape[1] != call.k.shape[1],
            "kernel_options": SMALL_TILES if bias is not None or call.q.dtype == torch.float32 else None,
        }
        if self.interpreted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "called without torch.compile": that is the point here
                return Out(flex_attention(call.q, call.k, call.v, **options), None)  # pyright: ignore
        kernel = flex_attention if torch.compiler.is_compiling() else _compiled()
        return Out(kernel(call.q, call.k, call.v, **options), None)  # pyright: ignore


@cache
def _compiled():
    return torch.compile(flex_attention)


def _mask_mod(plan: Plan):
    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return allowed(plan.mask, Pairs(b, h, seat(plan.queries, b, q), seat(plan.keys, b, k)))

    return mask_mod


class Bounds(NamedTuple):
    """Per block of slots: least and greatest order and segment; ``whole`` is False for a short last block."""

    low: Tensor  # [B|1, blocks]
    high: Tensor
    first: Tensor
    last: Tensor
    whole: Tensor  # [blocks]


def bounds(slots: AnySlots, device: torch.device, size: int = BLOCK) -> Bounds:
    """From arithmetic for a Range, from one pass over the slots (O(N)) for the others."""
    length = slots.length
    blocks = -(-length // size)
    start = torch.arange(blocks, device=device)[None] * size
    stop = (start + size).clamp(max=length)
    whole = (stop - start == size)[0]
    if isinstance(slots, Range):
        zero = torch.zeros_like(start)
        return Bounds(start + slots.start, stop - 1 + slots.start, zero, zero, whole)
    rows = torch.arange(slots.rows, device=device)[:, None]
    seats = slots.at(rows, torch.arange(length, device=device)[None])
    order = seats.order.expand(slots.rows, length)
    cut = [_blocked(x, blocks, size) for x in (order, seats.segment)]
    return Bounds(cut[0].amin(-1), cut[0].amax(-1), cut[1].amin(-1), cut[1].amax(-1), whole)


def _blocked(x: Tensor, blocks: int, size: int) -> Tensor:
    """[B, N] to [B, blocks, size]; the last block repeats its last slot, which moves no extreme."""
    missing = blocks * size - x.shape[1]
    return F.pad(x[:, None].double(), (0, missing), mode="replicate")[:, 0].long().view(x.shape[0], blocks, size)


def _validity(queries: Bounds, keys: Bounds) -> Verdict:
    """May two slots of these blocks share a document; do all of them, surely?"""
    q_first, q_last = queries.first[:, :, None], queries.last[:, :, None]
    k_first, k_last = keys.first[:, None, :], keys.last[:, None, :]
    may = (q_first <= k_last) & (k_first <= q_last) & (q_last >= 0) & (k_last >= 0)
    one = (q_first == q_last) & (k_first == k_last) & (q_first == k_first) & (q_first >= 0)
    return Verdict(may, one & queries.whole[:, None] & keys.whole)


def _listed(layout: Tensor) -> tuple[Tensor, Tensor]:
    """[B, Q, K] booleans to (how many [B,1,Q], which [B,1,Q,K]) as FlexAttention wants them."""
    counts = layout.sum(-1, dtype=torch.int32)
    indices = layout.int().argsort(dim=-1, descending=True, stable=True).int()
    return counts[:, None].contiguous(), indices[:, None].contiguous()
