"""The kernel of `decode_gemv`: one row times a matrix, with the norm before and the activation and sum after it.

A decoding step at batch 1 is a hundred such products, each a few microseconds of reading. As a separate kernel, a norm
or a sum costs as much as a product.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

#: Rows per program, how much of them at once, and warps: what keeps most reads under way on an H200.
FLOAT, INT8 = (2, 2048, 4), (4, 2048, 4)


@triton.jit
def _through(
    x, gain, weight, scale, bias, other, out, rows,
    WIDTH: tl.constexpr, EPS: tl.constexpr, NORMED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, ADDED: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    total = tl.zeros((ROWS, WIDE), dtype=tl.float32)
    gate = tl.zeros((ROWS, WIDE), dtype=tl.float32)
    square = tl.zeros((WIDE,), dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, WIDE):
        lane = start + tl.arange(0, WIDE)
        inside = lane < WIDTH
        value = tl.load(x + lane, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            square += value * value
            value *= tl.load(gain + lane, mask=inside, other=0.0).to(tl.float32)
        wanted = there[:, None] & inside[None, :]
        if GATED:  # the first half of the matrix is the gate
            place = row.to(tl.int64)[:, None] * WIDTH + lane[None, :]
            gate += tl.load(weight + place, mask=wanted, other=0.0).to(tl.float32) * value[None, :]
        place = (row + (rows if GATED else 0)).to(tl.int64)[:, None] * WIDTH + lane[None, :]
        total += tl.load(weight + place, mask=wanted, other=0.0).to(tl.float32) * value[None, :]
    result = tl.sum(total, 1)
    opened = tl.sum(gate, 1)
    if NORMED:  # the norm's factor is the same for all of x, so it may come last
        inverse = tl.rsqrt(tl.sum(square, 0) / WIDTH + EPS)
        result *= inverse
        opened *= inverse
    if SCALED:  # int8 weights, with the bits of a float32 scale per row
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


@torch.library.triton_op("regard::through", mutates_args={})
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
    rows, width = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    out = torch.empty(*x.shape[:-1], rows, dtype=x.dtype, device=x.device)
    few, most, warps = INT8 if scale is not None else FLOAT
    wide = min(triton.next_power_of_2(width), most // 2 if gated else most)
    unused = x  # a pointer that is not read
    torch.library.wrap_triton(_through)[(triton.cdiv(rows, few),)](
        x, unused if gain is None else gain, weight, unused if scale is None else scale,
        unused if bias is None else bias, unused if other is None else other, out, rows,
        WIDTH=width, EPS=eps, NORMED=gain is not None, BIASED=bias is not None, GATED=gated, ACTIVATION=after,
        ADDED=other is not None, SCALED=scale is not None, ROWS=few, WIDE=wide, num_warps=warps,
    )  # fmt: skip
    return out
