"""The banded backend: exact attention in blocks of queries, each with only the keys its mask can reach.

Cost and memory are O(N·w) for a mask that reaches w back, in both directions of the computation, on any device. Masks
without a bound still work and still never build N×N: a block sees every key up to the mask's reach.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attend.call import Call, Out, Plan, allowed
from regard.attend.sdpa import even_widths, fused, not_plain_softmax
from regard.attend.slots import AnySlots, Packed, Padded, Range, make_pairs


class Band(NamedTuple):
    """One block of queries: which key chunks it reads, which pairs it allows, which of its rows see nothing."""

    first: int  # key chunk
    last: int  # one past the last key chunk
    seen: Tensor  # [B|1, 1, q, k]
    blank: Tensor  # [B|1, 1, q, 1]


class Bands(NamedTuple):
    size: int
    bands: tuple[Band, ...]


class Banded:
    """Query blocks through the fused kernel, each against its own stretch of keys."""

    name = "banded"

    def refuses(self, call: Call) -> list[str]:
        reasons = not_plain_softmax(call, takes_bias=call.bias is not None and call.bias.additive)
        if not all(isinstance(s, Range | Padded | Packed) for s in (call.plan.queries, call.plan.keys)):
            reasons.append("the slots' order is known only to the device, so no key range can be cut")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> Bands:
        queries, keys, reach = plan.queries, plan.keys, plan.mask.reach()
        size = block_size(reach.back, reach.ahead)
        bands = []
        for low in range(0, queries.length, size):
            high = min(low + size, queries.length)
            start, stop = 0, keys.length
            if reach.back is not None:
                start = max(start, first_order(queries) + low - reach.back - first_order(keys))
            if reach.ahead is not None:
                stop = min(stop, first_order(queries) + high + reach.ahead - first_order(keys))
            if start >= stop:  # nothing to see: any chunk will do, since every row is blanked
                start, stop = 0, 1
            first, last = start // size, -(-stop // size)
            columns = slice(first * size, min(last * size, keys.length))
            tile = {"rows": slice(low, high), "columns": columns}
            pairs = make_pairs(queries, keys, heads=1, device=device, batch=plan.rows, **tile)
            seen = allowed(plan.mask, pairs)
            blank = ~seen.any(-1, keepdim=True)
            bands.append(Band(first, last, seen | blank, blank))
        return Bands(size, tuple(bands))

    def run(self, call: Call) -> Out:
        size, bands = call.plan.prepared
        q, k, v, width = even_widths(call.q, call.k, call.v)
        # Chunks are cut once: the backward of a slice per block would touch all of k for every block, O(N²).
        k_chunks, v_chunks = k.split(size, dim=2), v.split(size, dim=2)
        parts = []
        for i, (block, band) in enumerate(zip(q.split(size, dim=2), bands, strict=True)):
            near_k = torch.cat(k_chunks[band.first : band.last], dim=2)
            near_v = torch.cat(v_chunks[band.first : band.last], dim=2)
            seen = self._biased(call, i * size, block, band, near_k) if call.bias is not None else band.seen
            values = fused(call, block, near_k, near_v, seen, causal=False)
            parts.append(values.masked_fill(band.blank, 0))
        return Out(torch.cat(parts, dim=2)[..., :width], None)

    def _biased(self, call: Call, low: int, block: Tensor, band: Band, near_k: Tensor) -> Tensor:
        """The additive bias of this tile as a float mask; gradients reach a learned table through it."""
        assert call.bias is not None
        start = band.first * call.plan.prepared.size
        pairs = make_pairs(
            call.plan.queries,
            call.plan.keys,
            heads=block.shape[1],
            device=block.device,
            batch=call.plan.rows,
            rows=slice(low, low + block.shape[2]),
            columns=slice(start, start + near_k.shape[2]),
        )
        shape = (call.plan.rows, block.shape[1], block.shape[2], near_k.shape[2])
        bias = call.bias.adjust(block.new_zeros(shape), pairs) / call.temperature
        return bias.masked_fill(~band.seen, float("-inf"))


def first_order(slots: AnySlots) -> int:
    """The order of the first slot of the kinds whose orders are consecutive."""
    return slots.start if isinstance(slots, Range) else 0


def block_size(back: int | None, ahead: int | None) -> int:
    """Blocks of about the window's width waste little: each reads the window plus itself."""
    if back is None or ahead is None:
        return 512
    span = back + ahead + 1
    return min(512, max(64, 1 << (span - 1).bit_length() >> 1))
