"""What the tests of sparse attention share: the patterns, their meaning in plain Python, and slots to lay them over."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import attention as a
from regard.attention.masks.patterns import Chunks, Columns, Scattered, Sinks

CPU = torch.device("cpu")


def drawn_blocks(count: int, seed: int = 3) -> Tensor:
    return torch.rand(count, count, generator=torch.Generator().manual_seed(seed)) < 0.3


PATTERNS: dict[str, a.Mask] = {
    "window": a.Causal() & a.Window(20),
    "sinks": a.Causal() & (a.Window(9) | Sinks(4)),
    "dilated": a.Dilated(20, 12, ahead=3),
    "strided": a.Causal() & (a.Window(16) | a.Strided(16)),
    "strided, bounded": a.Causal() & (a.Window(8) | a.Dilated(15, 9)),
    "two strides": (a.Strided(11) | a.Dilated(30, 6, ahead=2)) & ~a.Window(3, 3),
    "fixed": a.Causal() & (Chunks(16) | Columns(16, 3)),
    "longformer": a.Window(9, 8) | Sinks(3, mutual=True),
    "bigbird": a.Causal() & (a.Window(9) | Sinks(3) | Scattered.drawn(16, 2, seed=0)),
    "prefix": a.Causal() | a.Prefix(40),
    "global": a.Global((0, 70)) | a.Window(5),
    "blocks": a.Blocks(drawn_blocks(14), 16),
    "causal": a.Causal(),
    "nothing": ~a.Full(),
}


def slots_of(kind: str, length: int) -> a.AnySlots:
    cut = length // 3
    if kind == "padded":
        return a.Padded(torch.tensor([length - 30, 0]), length)
    if kind == "packed":
        return a.Packed.of([[cut, cut + 5], [5, length - 9]], length)
    return a.Range(length, start=7 if kind == "later" else 0)


KINDS = ["range", "padded", "packed"]


def agrees(mask: a.Mask, q: tuple[int, int], k: tuple[int, int]) -> bool:
    """Whether a pattern lets (order, phase) ``q`` see ``k``, by its words."""
    match mask:
        case Sinks(count, mutual):
            return k[1] < count or (mutual and q[1] < count)
        case Chunks(size):
            return k[1] in range(q[1] - q[1] % size, q[1] - q[1] % size + size)
        case Columns(stride, width):
            return k[1] % stride in range(stride - width, stride)
    raise TypeError(mask)
