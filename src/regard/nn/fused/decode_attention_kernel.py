"""Attention of one token on a GPU, from its projection to the mixed values: two kernels.

As separate kernels, the rotation and the writes to the KV cache cost as much as the attention. Here each program
of the first kernel rotates its own query, and the new key and value, which belong to one chunk of keys, are written by
the programs that read that chunk. The second kernel joins the chunks, as in the decode_gpu backend.
"""

from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton import language as tl

from regard.nn.fused.decode_gemv_kernel import early

TILE = 64  # keys of a chunk


@triton.jit
def _rotated(x, cos, sin, lane, D: tl.constexpr):
    """A query or key [D], rotated in pairs of lanes i and i + D/2."""
    half: tl.constexpr = D // 2
    inside = lane < D
    value = tl.load(x + lane, mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(x + (lane + half) % D, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + lane % half, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + lane % half, mask=inside, other=0.0).to(tl.float32)
    return value * c + tl.where(lane < half, -partner, partner) * s


@triton.jit
def _chunk(
    qkv, cos, sin, k, v, place, seen, tops, totals, parts, keys, heads, groups, chunks, k_head, v_head,
    SCALE: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head = tl.program_id(0)
    shared = heads // groups
    group = head // shared
    lane = tl.arange(0, WIDE)
    inside = lane < D
    key = tl.program_id(1) * TILE + tl.arange(0, TILE)
    new = tl.load(place)
    there = key < keys
    if MASKED:
        there &= tl.load(seen + key, mask=there, other=0) != 0
    result = head * chunks + tl.program_id(1)
    k += group.to(tl.int64) * k_head
    v += group.to(tl.int64) * v_head
    query = _rotated(qkv + head * D, cos, sin, lane, D) * SCALE
    newest = _rotated(qkv + (heads + group) * D, cos, sin, lane, D).to(k.dtype.element_ty)
    value = tl.load(qkv + (heads + groups + group) * D + lane, mask=inside, other=0.0).to(v.dtype.element_ty)
    fresh = key == new
    at = key[:, None] * D + lane[None, :]
    wanted = (there & (key != new))[:, None] & inside[None, :]
    stored = tl.where(fresh[:, None], newest[None, :], tl.load(k + at, mask=wanted, other=0.0))
    values = tl.where(fresh[:, None], value[None, :], tl.load(v + at, mask=wanted, other=0.0))
    writes = inside & (head % shared == 0) & (new // TILE == tl.program_id(1))
    tl.store(k + new * D + lane, newest, mask=writes)
    tl.store(v + new * D + lane, value, mask=writes)
    score = tl.where(there, tl.sum(stored.to(tl.float32) * query[None, :], 1), float("-inf"))
    top = tl.max(score, 0)
    weight = tl.where(there, tl.exp(score - tl.where(top > float("-inf"), top, 0.0)), 0.0)
    tl.store(tops + result, top)
    tl.store(totals + result, tl.sum(weight, 0))
    tl.store(parts + result * WIDE + lane, tl.sum(weight[:, None] * values.to(tl.float32), 0))


@triton.jit
def _join(
    tops, totals, parts, out, chunks, D: tl.constexpr, WIDE: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    number = tl.arange(0, ALL)
    lane = tl.arange(0, WIDE)
    place = tl.program_id(0) * chunks + number
    top = tl.load(tops + place, mask=number < chunks, other=float("-inf"))
    seen = top > float("-inf")
    best = tl.max(top, 0)
    share = tl.where(seen, tl.exp(top - tl.where(best > float("-inf"), best, 0.0)), 0.0)
    total = tl.sum(share * tl.load(totals + place, mask=seen, other=0.0), 0)
    part = tl.load(parts + place[:, None] * WIDE + lane[None, :], mask=seen[:, None], other=0.0)
    mixed = tl.sum(share[:, None] * part, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + tl.program_id(0) * D + lane, mixed.to(out.dtype.element_ty), mask=lane < D)


@torch.library.custom_op("regard::attend_one", mutates_args=("k", "v"))
def attend_one(
    qkv: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor, place: Tensor, seen: Tensor | None, scale: float
) -> Tensor:
    """One token's queries, keys and values qkv [1, 1, (H + G + G) D], rotated, over the cache k and v [1, G, S, D].

    The new key and value are written to entry ``place`` of the cache. ``seen`` [1, S] says which entries the token
    sees; None: all. Returns [1, 1, H D].
    """
    groups, keys, width = k.shape[1], k.shape[2], k.shape[3]
    heads = qkv.shape[-1] // width - 2 * groups
    wide, chunks = triton.next_power_of_2(width), triton.cdiv(keys, TILE)
    tops, totals, parts = (qkv.new_empty(heads, chunks, n, dtype=torch.float32) for n in (1, 1, wide))
    out = _shape(qkv, cos, sin, k, v, place, seen, scale)
    cast(Any, _chunk)[(heads, chunks)](
        qkv, cos, sin, k, v, place, qkv if seen is None else seen, tops, totals, parts, keys, heads, groups, chunks,
        k.stride(1), v.stride(1), SCALE=scale, MASKED=seen is not None, D=width, WIDE=wide, TILE=TILE,
        num_warps=4, **early(qkv.device),
    )  # fmt: skip
    everything = triton.next_power_of_2(chunks)
    cast(Any, _join)[(heads,)](
        tops, totals, parts, out, chunks, D=width, WIDE=wide, ALL=everything, num_warps=2, **early(qkv.device)
    )
    return out


@attend_one.register_fake
def _shape(qkv, cos, sin, k, v, place, seen, scale) -> Tensor:
    width = k.shape[3]
    return qkv.new_empty(1, 1, qkv.shape[-1] - 2 * k.shape[1] * width)
