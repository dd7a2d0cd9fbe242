"""The kernel of the single backend: a program per head walks over the keys once, with a running softmax.

(Milakov and Gimelshein 2018.) It skips stretches of the memory that hold nothing yet, and a row that sees nothing stays
zero by itself. `mix_one` is an operator of its own, so that a compiled step can contain it.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

TILE = 64  # keys at a time


@triton.jit
def _mix_one(
    q, k, v, seen, out, keys, heads, shared,
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key, seen_row,
    SCALE: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads  # a memory may pass 2^31 numbers
    group = head // shared
    lane = tl.arange(0, WIDE)
    query = tl.load(q + row * q_row + head * q_head + lane, mask=lane < D, other=0.0).to(tl.float32) * SCALE
    k += row * k_row + group * k_head
    v += row * v_row + group * v_head
    top = float("-inf")
    total = 0.0
    mixed = tl.zeros((WIDE,), dtype=tl.float32)
    for start in range(0, keys, TILE):
        key = start + tl.arange(0, TILE)
        there = key < keys
        if MASKED:
            there &= tl.load(seen + row * seen_row + key, mask=there, other=0) != 0
        if tl.max(there.to(tl.int32), 0) > 0:
            at, wanted = key[:, None], there[:, None]
            stored = tl.load(k + at * k_key + lane[None, :], mask=wanted & (lane < D)[None, :], other=0.0)
            values = tl.load(v + at * v_key + lane[None, :], mask=wanted & (lane < E)[None, :], other=0.0)
            score = tl.where(there, tl.sum(stored.to(tl.float32) * query[None, :], 1), float("-inf"))
            new_top = tl.maximum(top, tl.max(score, 0))
            shrink = tl.exp(top - new_top)
            weight = tl.exp(score - new_top)
            mixed = mixed * shrink + tl.sum(weight[:, None] * values.to(tl.float32), 0)
            total = total * shrink + tl.sum(weight, 0)
            top = new_top
    mixed = mixed / tl.where(total > 0, total, 1.0)
    place = out + (row * heads + head) * E + lane
    tl.store(place, mixed.to(out.dtype.element_ty), mask=lane < E)


def launch(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float, kernel) -> Tensor:
    """q [B, H, 1, D], k [B, G, K, D], v [B, G, K, E], seen [B|1, K] -> [B, H, 1, E]."""
    batch, heads, _, width = q.shape
    groups, keys, width_v = k.shape[1], k.shape[2], v.shape[3]
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    q = q if q.stride(3) == 1 else q.contiguous()
    out = torch.empty(batch, heads, 1, width_v, dtype=v.dtype, device=q.device)
    rows = 0 if seen is None or seen.shape[0] == 1 else seen.stride(0)
    strides = (q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], rows)
    kernel[(batch * heads,)](
        q, k, v, q if seen is None else seen, out, keys, heads, heads // groups, *strides,
        SCALE=scale, MASKED=seen is not None, D=width, E=width_v,  # SCALE: as an argument a compiler makes it float64
        WIDE=triton.next_power_of_2(max(width, width_v)), TILE=TILE, num_warps=4,
    )  # fmt: skip
    return out


@torch.library.triton_op("regard::mix_one", mutates_args={})
def mix_one(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """One query per head over all keys it sees."""
    return launch(q, k, v, seen, scale, torch.library.wrap_triton(_mix_one))
