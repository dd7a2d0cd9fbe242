"""The kernel of `decode_gemv`: one row times a matrix, with the norm before and the activation and sum after it.

A decoding step at batch 1 is a hundred such products, each a few microseconds of reading. As a separate kernel, a norm
or a sum costs as much as a product. Weights do not depend on the kernel before, so on Hopper a kernel is launched while
that one still runs and reads its first weights meanwhile (programmatic dependent launch, `gdc_wait`).
"""

from functools import cache
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from triton import language as tl

DEPENDENT = True  # whether kernels may be launched before the one before has ended


class KernelTile(NamedTuple):
    """What one program reads."""

    rows: int
    wide: int  # columns at once
    warps: int


#: By the type of the weights and the kind of product.
TILES = {
    "float": KernelTile(4, 2048, 4),
    "float gated": KernelTile(8, 1024, 4),
    "int8": KernelTile(4, 2048, 4),
    "int8 gated": KernelTile(8, 1024, 4),
}


@cache
def launches_early(device: torch.device) -> bool:
    """Whether this GPU and this triton have programmatic dependent launch."""
    hopper = torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (9, 0)
    return hopper and hasattr(getattr(tl.extra, "cuda", None), "gdc_wait")


def early(device: torch.device) -> dict[str, Any]:
    """The arguments of a launch that say whether it may begin before the last kernel has ended."""
    return {"EARLY": True, "launch_pdl": True} if DEPENDENT and launches_early(device) else {"EARLY": False}


@triton.jit
def _float32(codes):
    """int8 to float32. The byte w + 128 as the last bits of 2^23 is exact, and faster than the conversion of a GPU."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 u;
        xor.b32 u, $4, 0x80808080;
        prmt.b32 $0, u, 0x4B000000, 0x7650;
        prmt.b32 $1, u, 0x4B000000, 0x7651;
        prmt.b32 $2, u, 0x4B000000, 0x7652;
        prmt.b32 $3, u, 0x4B000000, 0x7653;
        sub.f32 $0, $0, 0f4B000080;
        sub.f32 $1, $1, 0f4B000080;
        sub.f32 $2, $2, 0f4B000080;
        sub.f32 $3, $3, 0f4B000080;
        }""",
        "=f,=f,=f,=f,r", [codes], dtype=tl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _products(codes, value, INT8: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, RUN: tl.constexpr):
    """Weights [ROWS, WIDE] times a row, summed over the ``RUN`` neighbors that one thread holds."""
    weight = _float32(codes) if INT8 else codes.to(tl.float32)
    return tl.sum(tl.reshape(weight * value[None, :], (ROWS, WIDE // RUN, RUN)), 2)


@triton.jit
def _through(
    x, gain, weight, scale, bias, other, out, rows,
    WIDTH: tl.constexpr, EPS: tl.constexpr, NORMED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, ADDED: tl.constexpr, INT8: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    RUN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    lane = tl.arange(0, WIDE)
    place = row.to(tl.int64)[:, None] * WIDTH + lane[None, :]
    second = (rows if GATED else 0) * tl.full((), WIDTH, tl.int64)  # the first half of a gated matrix is the gate
    wanted = there[:, None] & (lane < WIDTH)[None, :]
    codes = tl.load(weight + second + place, mask=wanted, other=0)  # nothing before wrote them
    gates = tl.load(weight + place, mask=wanted, other=0) if GATED else codes
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((ROWS, WIDE // RUN), dtype=tl.float32)
    gate = tl.zeros((ROWS, WIDE // RUN), dtype=tl.float32)
    square = tl.zeros((WIDE,), dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, WIDE):
        inside = start + lane < WIDTH
        value = tl.load(x + start + lane, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            square += value * value
            value *= tl.load(gain + start + lane, mask=inside, other=0.0).to(tl.float32)
        if start > 0:
            wanted = there[:, None] & inside[None, :]
            codes = tl.load(weight + second + place + start, mask=wanted, other=0)
            if GATED:
                gates = tl.load(weight + place + start, mask=wanted, other=0)
        total += _products(codes, value, INT8, ROWS, WIDE, RUN)
        if GATED:
            gate += _products(gates, value, INT8, ROWS, WIDE, RUN)
    result = tl.sum(total, 1)
    opened = tl.sum(gate, 1)
    if NORMED:  # the norm's factor is the same for all of x, so it may come last
        inverse = tl.rsqrt(tl.sum(square, 0) / WIDTH + EPS)
        result *= inverse
        opened *= inverse
    if INT8:  # with the bits of a float32 scale per row
        result *= tl.load(scale + row + (rows if GATED else 0), mask=there, other=0).to(tl.float32, bitcast=True)
        if GATED:
            opened *= tl.load(scale + row, mask=there, other=0).to(tl.float32, bitcast=True)
    if BIASED:
        result += tl.load(bias + row + (rows if GATED else 0), mask=there, other=0.0).to(tl.float32)
        if GATED:
            opened += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    if GATED:
        result *= opened * tl.sigmoid(opened)
    if ACTIVATION == "relu2":
        positive = tl.maximum(result, 0.0)
        result = positive * positive
    if ADDED:
        result += tl.load(other + row, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=there)


# An opaque operator: a compiler would launch the kernel without ``launch_pdl``.
@torch.library.custom_op("regard::through", mutates_args=())
def through(
    x: Tensor,
    gain: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    after: str,
    other: Tensor | None,
    scale: Tensor | None = None,
) -> Tensor:
    """after(norm(x) Wᵀ + b) + other for one row: x [..., K], all but the last axis 1, to [..., R].

    ``weight`` is [R, K], or [2R, K] with ``after`` "swiglu"; in int8, ``scale`` holds the bits of a factor per row.
    """
    gated = after == "swiglu"
    out = _shape(x, gain, eps, weight, bias, after, other, scale)
    rows, width = out.shape[-1], weight.shape[1]
    tile = TILES[("float" if scale is None else "int8") + (" gated" if gated else "")]
    wide = min(max(triton.next_power_of_2(width), 16), tile.wide)
    unused = x  # a pointer that is not read
    cast(Any, _through)[(triton.cdiv(rows, tile.rows),)](
        x, unused if gain is None else gain, weight, unused if scale is None else scale,
        unused if bias is None else bias, unused if other is None else other, out, rows,
        WIDTH=width, EPS=eps, NORMED=gain is not None, BIASED=bias is not None, GATED=gated, ACTIVATION=after,
        ADDED=other is not None, INT8=scale is not None, ROWS=tile.rows, WIDE=wide, RUN=16 // weight.element_size(),
        num_warps=tile.warps, **early(x.device),
    )  # fmt: skip
    return out


@through.register_fake
def _shape(x, gain, eps, weight, bias, after, other, scale=None) -> Tensor:
    rows = weight.shape[0] // (2 if after == "swiglu" else 1)
    return torch.empty(*x.shape[:-1], rows, dtype=x.dtype, device=x.device)
