"""Quantized tensors of GGUF files: blocks of small integers with a scale, and for some formats a minimum, each.

The layouts are those of ggml (`ggml-common.h`): a row is a sequence of blocks, and a block a struct of bytes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # [blocks, bytes of a block]
Floats = NDArray[np.float32]  # [blocks, values of a block]


class Format(NamedTuple):
    """A number format: its name, how many values a block holds, and in how many bytes."""

    name: str
    values: int
    size: int
    read: Callable[[Bytes], Floats]


def _half(block: Bytes, at: int) -> Floats:
    """A float16 at a byte of every block, [blocks, 1]."""
    return np.ascontiguousarray(block[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(block: Bytes) -> NDArray[np.uint8]:
    """Low halves of all bytes, then high halves."""
    return np.concatenate((block & np.uint8(15), block >> np.uint8(4)), axis=1)


def _q4_0(block: Bytes) -> Floats:
    return _half(block, 0) * (_nibbles(block[:, 2:]).astype(np.float32) - 8)


def _q4_1(block: Bytes) -> Floats:
    return _half(block, 0) * _nibbles(block[:, 4:]).astype(np.float32) + _half(block, 2)


def _fifth_bits(block: Bytes, at: int) -> NDArray[np.uint8]:
    """The bits of a 32-bit word at a byte of every block, each as 16 or 0: [blocks, 32]."""
    word = np.ascontiguousarray(block[:, at : at + 4]).view("<u4")
    return (((word >> np.arange(32, dtype=np.uint32)) & 1) << 4).astype(np.uint8)


def _q5_0(block: Bytes) -> Floats:
    return _half(block, 0) * ((_nibbles(block[:, 6:]) | _fifth_bits(block, 2)).astype(np.float32) - 16)


def _q5_1(block: Bytes) -> Floats:
    values = (_nibbles(block[:, 8:]) | _fifth_bits(block, 4)).astype(np.float32)
    return _half(block, 0) * values + _half(block, 2)


def _q8_0(block: Bytes) -> Floats:
    return _half(block, 0) * np.ascontiguousarray(block[:, 2:]).view(np.int8).astype(np.float32)


def _q4_k(block: Bytes) -> Floats:
    """Eight groups of 32, with 6-bit scales and minima packed into 12 bytes."""
    packed = block[:, 4:16]
    low, high, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 63, (mixed & 15) | ((low >> 6) << 4)), axis=1).astype(np.float32)
    minima = np.concatenate((high & 63, (mixed >> 4) | ((high >> 6) << 4)), axis=1).astype(np.float32)
    pairs = block[:, 16:].reshape(-1, 4, 32)  # the low halves are one group, the high halves the next
    values = np.stack((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32).astype(np.float32)
    scales, minima = _half(block, 0) * scales, _half(block, 2) * minima
    return np.asarray(scales[:, :, None] * values - minima[:, :, None], np.float32).reshape(-1, 256)


def _q6_k(block: Bytes) -> Floats:
    """Sixteen groups of 16, with 8-bit scales; of each value four bits are in one place and two in another."""
    low = block[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[None, None, :, None] & 15
    high = block[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None] & 3
    values = low.reshape(-1, 2, 4, 32) | (high << 4)
    scales = np.ascontiguousarray(block[:, 192:208]).view(np.int8).astype(np.float32)
    grouped = (values.astype(np.float32) - 32).reshape(-1, 16, 16)
    return ((_half(block, 208) * scales)[:, :, None] * grouped).reshape(-1, 256)


def _bfloat16(block: Bytes) -> Floats:
    return (np.ascontiguousarray(block).view("<u2").astype(np.uint32) << 16).view(np.float32)


#: By the number of a type in a GGUF file.
FORMATS = {
    0: Format("F32", 1, 4, lambda block: np.ascontiguousarray(block).view("<f4")),
    1: Format("F16", 1, 2, lambda block: _half(block, 0)),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    6: Format("Q5_0", 32, 22, _q5_0),
    7: Format("Q5_1", 32, 24, _q5_1),
    8: Format("Q8_0", 32, 34, _q8_0),
    12: Format("Q4_K", 256, 144, _q4_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    30: Format("BF16", 1, 2, _bfloat16),
}


def to_q8_0(values: Floats) -> bytes:
    """Blocks of 32 values as int8 with a float16 scale, rounded to the nearest."""
    blocks = np.asarray(values, np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    rounded = np.rint(blocks * inverse).astype(np.int8)
    return np.concatenate((scale.astype(np.float16).view(np.uint8), rounded.view(np.uint8)), axis=1).tobytes()
