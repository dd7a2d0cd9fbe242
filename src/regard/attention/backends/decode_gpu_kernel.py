"""The kernels of the decode_gpu backend: chunks of keys in parallel, then one softmax over their results.

(Dao et al. 2023, "Flash-Decoding".) One query per head leaves a GPU idle, so the keys are divided into chunks with a
program each; a chunk without visible keys is not read. The second kernel weighs the chunks by their greatest score and
their sum (Milakov and Gimelshein 2018). A row that sees nothing is zero. `mix_one` is a custom operator, so that a
compiled step can contain it.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

TILE = 64  # keys of a chunk


@triton.jit
def _chunk(
    q, k, v, seen, tops, totals, parts, keys, heads, shared, chunks,
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key, seen_row,
    SCALE: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // heads).to(tl.int64)  # a cache may have more than 2^31 elements
    head = tl.program_id(0) % heads
    lane = tl.arange(0, WIDE)
    key = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = key < keys
    if MASKED:
        there &= tl.load(seen + row * seen_row + key, mask=there, other=0) != 0
    place = tl.program_id(0) * chunks + tl.program_id(1)
    if tl.max(there.to(tl.int32), 0) > 0:
        query = tl.load(q + row * q_row + head * q_head + lane, mask=lane < D, other=0.0).to(tl.float32) * SCALE
        k += row * k_row + head // shared * k_head
        v += row * v_row + head // shared * v_head
        at, wanted = key[:, None], there[:, None]
        stored = tl.load(k + at * k_key + lane[None, :], mask=wanted & (lane < D)[None, :], other=0.0)
        values = tl.load(v + at * v_key + lane[None, :], mask=wanted & (lane < E)[None, :], other=0.0)
        score = tl.where(there, tl.sum(stored.to(tl.float32) * query[None, :], 1), float("-inf"))
        top = tl.max(score, 0)
        weight = tl.exp(score - top)
        tl.store(tops + place, top)
        tl.store(totals + place, tl.sum(weight, 0))
        tl.store(parts + place * WIDE + lane, tl.sum(weight[:, None] * values.to(tl.float32), 0))
    else:
        tl.store(tops + place, float("-inf"))


@triton.jit
def _join(tops, totals, parts, out, chunks, E: tl.constexpr, WIDE: tl.constexpr, ALL: tl.constexpr):
    number = tl.arange(0, ALL)
    lane = tl.arange(0, WIDE)
    place = tl.program_id(0) * chunks + number
    top = tl.load(tops + place, mask=number < chunks, other=float("-inf"))
    seen = top > float("-inf")
    share = tl.where(seen, tl.exp(top - tl.max(tl.where(seen, top, float("-inf")), 0)), 0.0)
    total = tl.sum(share * tl.load(totals + place, mask=seen, other=0.0), 0)
    part = tl.load(parts + place[:, None] * WIDE + lane[None, :], mask=seen[:, None], other=0.0)
    mixed = tl.sum(share[:, None] * part, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + tl.program_id(0) * E + lane, mixed.to(out.dtype.element_ty), mask=lane < E)


def launch(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float, chunk, join) -> Tensor:
    """q [B, H, 1, D], k [B, G, K, D], v [B, G, K, E], seen [B|1, K] -> [B, H, 1, E]."""
    batch, heads, _, width = q.shape
    groups, keys, width_v = k.shape[1], k.shape[2], v.shape[3]
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    q = q if q.stride(3) == 1 else q.contiguous()
    wide = triton.next_power_of_2(max(width, width_v))
    chunks = triton.cdiv(keys, TILE)
    # Separate buffers: of one buffer with several views a compiler would make copies.
    tops, totals, parts = (q.new_empty(batch * heads, chunks, n, dtype=torch.float32) for n in (1, 1, wide))
    out = torch.empty(batch, heads, 1, width_v, dtype=v.dtype, device=q.device)
    rows = 0 if seen is None or seen.shape[0] == 1 else seen.stride(0)
    strides = (q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], rows)
    chunk[(batch * heads, chunks)](
        q, k, v, q if seen is None else seen, tops, totals, parts, keys, heads, heads // groups, chunks, *strides,
        SCALE=scale, MASKED=seen is not None, D=width, E=width_v,  # SCALE: as an argument a compiler makes it float64
        WIDE=wide, TILE=TILE, num_warps=4,
    )  # fmt: skip
    everything = triton.next_power_of_2(chunks)
    join[(batch * heads,)](tops, totals, parts, out, chunks, E=width_v, WIDE=wide, ALL=everything, num_warps=2)
    return out


@torch.library.triton_op("regard::mix_one", mutates_args={})
def mix_one(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """One query per head over all keys that it sees."""
    wrap = torch.library.wrap_triton
    return launch(q, k, v, seen, scale, wrap(_chunk), wrap(_join))
