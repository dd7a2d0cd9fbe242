"""Exact measures of attention maps of any length: each strip of weights is computed, reduced and discarded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.look.capture.strips import ROWS, Strip, strip_ranges, strips
from regard.look.capture.trace import Attention


class Reducer(Protocol):
    """Receives the attention first, then every strip of every head."""

    def begin(self, attention: Attention) -> None: ...

    def take(self, head: int, strip: Strip) -> None: ...


def reduce(attention: Attention, reducers: Sequence[Reducer], size: int = ROWS) -> None:
    """Pass all weights of an attention to the reducers, ``size`` queries of one head at a time."""
    for reducer in reducers:
        reducer.begin(attention)
    ranges = strip_ranges(attention, size)
    for head in range(attention.q.shape[1]):
        for strip in strips(attention, head, ranges):
            for reducer in reducers:
                reducer.take(head, strip)


class Entropy:
    """-Σ w log w of each row in nats, and the number of visible keys: [B, H, Q] each. Without visible keys it is 0."""

    values: Tensor
    seen: Tensor

    def begin(self, attention: Attention) -> None:
        self.values = _blank(attention)
        self.seen = _blank(attention)

    def take(self, head: int, strip: Strip) -> None:
        self.values[:, head, strip.rows] = strip.entropy()
        self.seen[:, head, strip.rows] = strip.count().to(self.seen.dtype)


class TileMax:
    """The maximum weight in each tile of ``rows`` queries and ``columns`` keys: [B, H, tiles, tiles].

    The maximum, not the mean, so that a single large weight stays visible in the map of a long text.
    """

    values: Tensor

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns

    def begin(self, attention: Attention) -> None:
        tiles = [
            -(-length // size) for length, size in zip(_lengths(attention), (self.rows, self.columns), strict=True)
        ]
        self.values = attention.q.new_zeros(*attention.q.shape[:2], *tiles, dtype=_wide(attention))

    def take(self, head: int, strip: Strip) -> None:
        across, down, maxima = pooled(strip.weights, strip.columns.start, strip.rows.start, self.columns, self.rows)
        place = (slice(None), head, slice(down, down + maxima.shape[1]), slice(across, across + maxima.shape[2]))
        self.values[place] = torch.maximum(self.values[place], maxima)


class RowWeights(NamedTuple):
    """Weights of each row: [B, H, Q] each."""

    previous: Tensor  # on the previous token
    own: Tensor  # on the token itself
    first: Tensor  # on the first visible token
    peak: Tensor  # the maximum


class KeyWeights:
    """`RowWeights` of every row. In cross-attention, the previous and the own token do not exist and count 0."""

    def begin(self, attention: Attention) -> None:
        self.values = RowWeights(*(_blank(attention) for _ in RowWeights._fields))
        self._before, self._same = (_key_at(attention, back) for back in (1, 0))

    def take(self, head: int, strip: Strip) -> None:
        previous, own, first, peak = (part[:, head, strip.rows] for part in self.values)
        previous.copy_(_picked(strip, self._before[:, strip.rows]))
        own.copy_(_picked(strip, self._same[:, strip.rows]))
        first.copy_(_picked(strip, strip.first()))
        peak.copy_(strip.weights.amax(-1))


def pooled(weights: Tensor, column: int, row: int, columns: int, rows: int) -> tuple[int, int, Tensor]:
    """Maxima of weights [B, q, k] that begin at ``row`` and ``column``, over tiles of ``rows`` × ``columns``.

    Also the first tile on either axis. Rows are reduced first, which reads memory in order.
    """
    down, whole = _aligned(weights.transpose(1, 2), row, rows)
    tall = whole.transpose(1, 2).unflatten(1, (-1, rows)).amax(2)  # [B, tiles, k]
    across, whole = _aligned(tall, column, columns)
    return across, down, whole.unflatten(-1, (-1, columns)).amax(-1)


def _aligned(x: Tensor, start: int, size: int) -> tuple[int, Tensor]:
    """The first block, and x [..., n], whose last axis begins at ``start``, padded with zeros to whole blocks."""
    before = start % size
    after = -(before + x.shape[-1]) % size
    return start // size, F.pad(x, (before, after)) if before or after else x


def _key_at(attention: Attention, back: int) -> Tensor:
    """The index [B, Q] of the key ``back`` positions before each query in its own document; -1 if there is none."""
    plan, batch, device = attention.plan, attention.q.shape[0], attention.q.device
    nowhere = torch.full((batch, attention.q.shape[2]), -1, device=device)
    if not plan.own:
        return nowhere
    rows = torch.arange(plan.queries.rows, device=device)[:, None]
    order, segment, _ = plan.queries.at(rows, torch.arange(plan.queries.length, device=device)[None])
    order, segment = (x.expand(len(rows), -1).contiguous() for x in (order, segment))
    filled = order.masked_fill(segment < 0, -(2**31))  # an empty slot has no neighbors
    sorted_, index = filled.sort(-1)
    place = torch.searchsorted(sorted_, order - back).clamp(max=order.shape[1] - 1)
    there = (sorted_.gather(1, place) == order - back) & (segment >= 0)
    keys = index.gather(1, place)
    return torch.where(there & (segment.gather(1, keys) == segment), keys, nowhere)


def _picked(strip: Strip, keys: Tensor) -> Tensor:
    """The weights [B, q] at one key of each row, given as [B, q]; 0 outside the strip."""
    place = keys - strip.columns.start
    inside = (place >= 0) & (place < strip.weights.shape[-1])
    return strip.weights.gather(-1, place.clamp(0, strip.weights.shape[-1] - 1)[..., None])[..., 0] * inside


def _lengths(attention: Attention) -> tuple[int, int]:
    return attention.q.shape[2], attention.k.shape[2]


def _blank(attention: Attention, *more: int) -> Tensor:
    """Zeros [B, H, Q, ...]."""
    return attention.q.new_zeros(*attention.q.shape[:3], *more, dtype=_wide(attention))


def _wide(attention: Attention) -> torch.dtype:
    return torch.promote_types(attention.q.dtype, torch.float32)
