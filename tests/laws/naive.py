"""Attention once more, pair by pair in plain Python: what the definition itself is held to.

Nothing here uses the library's arithmetic: masks, biases and slots are only read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard import attention as a


class Spot(NamedTuple):
    """One slot, as numbers."""

    order: int
    segment: int
    phase: int


def spot(slots: a.AnySlots, row: int, index: int) -> Spot:
    """What sits at ``index`` of a row, read off the slots' own words."""
    row = row if slots.rows > 1 else 0
    match slots:
        case a.Range(_, start):
            return Spot(start + index, 0, start + index)
        case a.Padded(lengths, _):
            return Spot(index, 0 if index < int(lengths[row]) else -1, index)
        case a.Packed(segment, phase, _):
            return Spot(index, int(segment[row, index]), int(phase[row, index]))
    return Spot(int(slots.order[row, index]), int(slots.segment[row, index]), int(slots.phase[row, index]))


def agrees(mask: a.Mask, row: int, asking: Spot, asked: Spot) -> bool:
    """Whether a mask lets one slot see another, if both hold tokens of one document."""
    q, k = asking.order, asked.order
    match mask:
        case a.Full():
            return True
        case a.Causal():
            return k <= q
        case a.Window(size, ahead):
            return k in range(q - size + 1, q + ahead + 1)
        case a.Dilated(size, step, ahead):
            return k in range(q - (size - 1) * step, q + ahead * step + 1, step)
        case a.Strided(stride):
            return abs(q - k) % stride == 0
        case a.Prefix(length):
            return k < length
        case a.Global(orders):
            return q in orders or k in orders
        case a.Same(labels):
            own = labels if labels.ndim == 1 else labels[row]
            return own[q].item() == own[k].item()
        case a.EdgeList(codes, length, rows):
            return ((row if rows > 1 else 0) * length + q) * length + k in codes.tolist()
        case a.Edges(adjacency):
            own = adjacency if adjacency.ndim == 2 else adjacency[row]
            return bool(own[q, k])
        case a.Blocks(layout, size):
            return bool(layout[q // size, k // size])
        case a.Sinks(count, mutual):
            return asked.phase < count or (mutual and asking.phase < count)
        case a.Chunks(size):
            return asking.phase // size == asked.phase // size
        case a.Columns(stride, width):
            return asked.phase % stride >= stride - width
        case a.Scattered(size, mixers):
            return asked.phase // size in [scattered(asking.phase // size, *mixer) for mixer in mixers]
        case a.And(left, right):
            return agrees(left, row, asking, asked) and agrees(right, row, asking, asked)
        case a.Or(left, right):
            return agrees(left, row, asking, asked) or agrees(right, row, asking, asked)
        case a.Not(inner):
            return not agrees(inner, row, asking, asked)
    raise TypeError(f"no plain meaning for {mask}: add one here")


def scattered(block: int, one: int, two: int, three: int) -> int:
    """The block up to ``block`` that a drawing by these coefficients gives."""
    mixed = ((one * block + two) ** 2 + three) % 46_337
    return (mixed**2 + two) % 46_337 * (block + 1) // 46_337


def sees(mask: a.Mask, row: int, q: Spot, k: Spot) -> bool:
    """Both hold something, of one document, and the mask agrees."""
    return q.segment >= 0 and q.segment == k.segment and agrees(mask, row, q, k)


def seen(mask: a.Mask, queries: a.AnySlots, keys: a.AnySlots, batch: int) -> Tensor:
    """Every pair [B, Q, K] of a call."""
    q = [[spot(queries, b, i) for i in range(queries.length)] for b in range(batch)]
    k = [[spot(keys, b, j) for j in range(keys.length)] for b in range(batch)]
    return torch.tensor([[[sees(mask, b, one, two) for two in k[b]] for one in q[b]] for b in range(batch)])


def bent(bias: a.Bias | None, score: float, head: int, q: Spot, k: Spot) -> float:
    """A score after its bias."""
    match bias:
        case a.Alibi():
            return score - float(bias.slopes[head]) * abs(q.phase - k.phase)
        case a.Relative():
            apart = max(-bias.distance, min(bias.distance, q.phase - k.phase))
            return score + bias.table[head, apart + bias.distance].item()
        case a.SoftCap():
            return bias.cap * math.tanh(score / bias.cap)
        case a.Chain():
            for part in bias.parts:
                score = bent(part, score, head, q, k)  # pyright: ignore[reportArgumentType]
    return score


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: a.Mask,
    queries: a.AnySlots,
    keys: a.AnySlots,
    bias: a.Bias | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """[B, H, Q, E] in float64: for each query the softmax over what it sees, nothing where it sees nothing."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    batch, heads, count, width = q.shape
    shared = heads // k.shape[1]  # query heads 0 .. shared-1 use key head 0, and so on
    factor = 1 / math.sqrt(width) if scale is None else scale
    out = torch.zeros(batch, heads, count, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        keyed = [spot(keys, b, j) for j in range(k.shape[2])]
        for i in range(count):
            asking = spot(queries, b, i)
            near = [j for j, other in enumerate(keyed) if sees(mask, b, asking, other)]
            for h in range(heads if near else 0):
                raw = [factor * float(q[b, h, i] @ k[b, h // shared, j]) for j in near]
                scores = [bent(bias, s, h, asking, keyed[j]) / temperature for s, j in zip(raw, near, strict=True)]
                shares = [math.exp(s - max(scores)) for s in scores]
                mixed = sum(s * v[b, h // shared, j] for s, j in zip(shares, near, strict=True))
                out[b, h, i] = mixed / sum(shares)
    return out
