"""Exact measures of a head: the entropy of its weights, and the weight on the previous, own and first token.

Each strip of weights is computed, reduced and discarded, so that texts of any length can be measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.capture.strips import ROWS, Strip, strip_ranges, strips
from regard.look.capture.trace import Attention

#: A head with at least this share of its weight on one kind of key is named after it.
MOST = 0.5
#: A head with at least this share of the maximum entropy is called even.
EVEN = 0.9


class Head(NamedTuple):
    """One head on one passage. Each number is a mean over the queries that see at least two keys."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    name: str  # the mechanism's module path
    entropy: float  # of the weights, in nats
    spread: float  # entropy as a share of its maximum, the log of the number of visible keys
    previous: float  # weight on the previous token
    own: float  # weight on the token itself
    first: float  # weight on the first visible token
    peak: float  # the maximum weight


class RowMeasures(NamedTuple):
    """Measures of every row of weights, [B, H, Q] each.

    In cross-attention, the previous and the own token do not exist and count 0.
    """

    seen: Tensor  # the number of visible keys
    entropy: Tensor  # -Σ w log w in nats; 0 without visible keys
    previous: Tensor  # weight on the previous token
    own: Tensor  # weight on the token itself
    first: Tensor  # weight on the first visible token
    peak: Tensor  # the maximum weight


def row_measures(attention: Attention, block: int = ROWS) -> RowMeasures:
    """The measures of all rows; ``block`` rows of weights of one head are in memory at a time."""
    dtype = torch.promote_types(attention.q.dtype, torch.float32)
    measures = RowMeasures(*(attention.q.new_zeros(attention.q.shape[:3], dtype=dtype) for _ in RowMeasures._fields))
    before, same = (_key_at(attention, back) for back in (1, 0))
    ranges = strip_ranges(attention, block)
    for head in range(attention.heads):
        for strip in strips(attention, head, ranges):
            keys = before[:, strip.rows], same[:, strip.rows], strip.first()
            values = strip.count(), strip.entropy(), *(_picked(strip, key) for key in keys), strip.weights.amax(-1)
            for measure, value in zip(measures, values, strict=True):
                measure[:, head, strip.rows] = value.to(dtype)
    return measures


def heads(attentions: Iterable[Attention], block: int = ROWS) -> list[Head]:
    """The measures of every head; ``block`` rows of weights are in memory at a time."""
    measured = []
    for layer, attention in enumerate(attentions, start=1):
        rows = row_measures(attention, block)
        counted = rows.seen > 1  # [B, H, Q]
        spread = rows.entropy / rows.seen.clamp(min=2).log()
        measures = torch.stack((rows.entropy, spread, *rows[2:])).double()  # [measures, B, H, Q]
        means = (measures * counted).sum((1, 3)) / counted.sum((0, 2)).clamp(min=1)
        columns = means.T.tolist()  # [H, measures]
        measured += [Head(layer, number, attention.name, *column) for number, column in enumerate(columns, start=1)]
    return measured


def describe(head: Head) -> str:
    """The kind of a head: previous token, own token, first token, even, focused or mixed."""
    places = {"previous token": head.previous, "own token": head.own, "first token": head.first}
    place = max(places, key=lambda name: places[name])
    if places[place] >= MOST:
        return place
    if head.spread >= EVEN:
        return "even"
    return "focused" if head.peak >= MOST else "mixed"


def _key_at(attention: Attention, back: int) -> Tensor:
    """The index [B, Q] of the key ``back`` positions before each query in its own document; -1 if there is none."""
    plan, batch, device = attention.plan, attention.q.shape[0], attention.q.device
    nowhere = torch.full((batch, attention.q.shape[2]), -1, device=device)
    if not plan.same_tokens:
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
