"""Exact weights of one head, a strip of queries at a time: Q×K is never held, and keys out of sight are never scored.

The mask's block bounds (`attention/tiling/block_bounds.py`) give the keys that a strip can see, and those for which
the mask must be evaluated pair by pair: of a causal map the strip across the diagonal only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import Dot, General, Pairs, Softmax, SoftmaxNormalizer
from regard.attention.call import allowed
from regard.attention.slots import make_pairs
from regard.attention.tiling.block_bounds import bounds, layout
from regard.look.capture.trace import Attention, cut_queries

ROWS = 128  # queries of a strip: their scores over thousands of keys stay in a processor's cache
KEYS = 128  # keys that are judged together
HELD = 2**16  # scores of a strip where each of them is made of a hidden layer


class Band(NamedTuple):
    """Some queries, the keys that they might see, and those among them of which some are hidden."""

    rows: slice
    columns: slice
    asked: slice  # counted like ``columns``; empty: every key of ``columns`` is seen by every query


class Strip(NamedTuple):
    """The weights of some queries of one head over the keys that they might see; over all others they are zero."""

    rows: slice
    columns: slice
    weights: Tensor  # [B, q, k]
    asked: slice  # the keys for which ``seen`` was asked, counted like ``columns``
    seen: Tensor  # [B, q, asked]
    scores: Tensor | None = None  # [B, q, k], whose softmax the weights are; None where they are not so simple

    def entropy(self) -> Tensor:  # [B, q]
        """-Σ w log w in nats; 0 for a query that sees nothing.

        By scores it is log Σ exp(s - max) - Σ w (s - max): one logarithm for a row instead of one for every weight.
        """
        if self.scores is None:
            return torch.special.entr(self.weights).sum(-1)
        below = self.scores - self.scores.amax(-1, keepdim=True)
        most = self.weights.amax(-1)
        return torch.where(most > 0, -most.log() - (self.weights * below).sum(-1), 0).clamp_(min=0)

    def count(self) -> Tensor:  # [B, q]
        """How many keys each query sees."""
        free = self.weights.shape[-1] - self.seen.shape[-1]
        return self.seen.sum(-1) + free

    def first(self) -> Tensor:  # [B, q]
        """The first key that each query sees; anything where it sees none."""
        begin, end = self.columns.start, self.asked.stop
        if not self.seen.shape[-1] or self.asked.start > begin:
            return self.seen.new_full(self.weights.shape[:2], begin, dtype=torch.long)
        return torch.where(self.seen.any(-1), begin + self.seen.long().argmax(-1), min(end, self.columns.stop - 1))


def bands(attention: Attention, size: int = ROWS) -> list[Band]:
    """All queries in bands of ``size``."""
    plan, device = attention.plan, attention.q.device
    if isinstance(attention.mechanism, Softmax) and not isinstance(attention.mechanism.score, Dot | General):
        size = min(size, 1 << max(1, HELD // plan.keys.length).bit_length() - 1)
    verdict = layout(plan.mask, bounds(plan.queries, device, size), bounds(plan.keys, device, KEYS))
    may, must = verdict.may.flatten(0, 1).any(0).cpu(), verdict.must.flatten(0, 1).all(0).cpu()
    found = []
    for number, low in enumerate(range(0, plan.queries.length, size)):
        rows = slice(low, min(low + size, plan.queries.length))
        near = may[number].nonzero()[:, 0].tolist() or [0]  # who sees nothing is shown a key that is hidden
        unsure = (~must[number, near[0] : near[-1] + 1]).nonzero()[:, 0].tolist()
        columns = _span(near[0], near[-1], plan.keys.length)
        asked = _span(near[0] + unsure[0], near[0] + unsure[-1], plan.keys.length) if unsure else slice(0, 0)
        found.append(Band(rows, columns, asked))
    return found


def _span(first: int, last: int, length: int) -> slice:
    return slice(first * KEYS, min((last + 1) * KEYS, length))


def strips(attention: Attention, head: int, among: list[Band] | None = None) -> Iterator[Strip]:
    """The weights of a head, band by band."""
    for band in bands(attention) if among is None else among:
        yield strip(attention, head, band)


@torch.no_grad()
def strip(attention: Attention, head: int, band: Band) -> Strip:
    """The weights of one band, as the reference backend defines them."""
    mechanism = attention.mechanism
    seen = sees(attention, head, band.rows, band.asked)
    if not isinstance(mechanism, Softmax) or not mechanism.per_head:
        return Strip(*band[:2], _weights(attention, head, band), band.asked, seen)
    scores = adjusted(attention, head, band)
    if not isinstance(mechanism.normalizer, SoftmaxNormalizer):
        whole = torch.ones_like(scores, dtype=torch.bool)
        whole[..., _inside(band)] = seen
        return Strip(*band[:2], mechanism.normalizer.normalize(scores, whole), band.asked, seen)
    if mechanism.normalizer.temperature != 1:
        scores = scores.div_(mechanism.normalizer.temperature)
    if seen.shape[-1]:
        scores[..., _inside(band)] = scores[..., _inside(band)].masked_fill_(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if seen.shape[-1] == weights.shape[-1]:  # only then a query may see nothing
        weights.masked_fill_(~seen.any(-1, keepdim=True), 0)
    return Strip(*band[:2], weights, band.asked, seen, scores)


def _weights(attention: Attention, head: int, band: Band) -> Tensor:
    """The weights [B, q, k] of one head, of a mechanism that computes all heads together."""
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (attention.q, attention.k))
    plan = cut_queries(attention.plan, band.rows, q.device)
    weights = attention.mechanism.weights(q[:, :, band.rows], k, plan)
    assert weights is not None  # an Attention is observable
    return weights[:, head, :, band.columns]


def _inside(band: Band) -> slice:
    """The keys asked for, counted from the first column."""
    return slice(band.asked.start - band.columns.start, band.asked.stop - band.columns.start)


def adjusted(attention: Attention, head: int, band: Band) -> Tensor:
    """Scores [B, q, k], scaled and biased: what the temperature, the mask and the softmax are given."""
    mechanism = attention.mechanism
    assert isinstance(mechanism, Softmax)
    q, k = compared(attention, head, band.rows, band.columns)
    call = mechanism.call(q, k, k, attention.plan)
    scores = mechanism.score(q, k).mul_(call.factor)
    if mechanism.bias is not None:
        scores = mechanism.bias.adjust(scores, pairs(attention, head, band.rows, band.columns))
    return scores[:, 0]


def compared(attention: Attention, head: int, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
    """Queries [B, 1, q, D] and keys [B, 1, k, D] of a head, in float32 or better."""
    group = attention.q.shape[1] // attention.k.shape[1]
    q = attention.q[:, head : head + 1, rows]
    k = attention.k[:, head // group : head // group + 1, columns]
    return q.to(torch.promote_types(q.dtype, torch.float32)), k.to(torch.promote_types(k.dtype, torch.float32))


def sees(attention: Attention, head: int, rows: slice, columns: slice) -> Tensor:
    """Which pairs are allowed, [B, q, k]."""
    batch, shape = attention.q.shape[0], (rows.stop - rows.start, columns.stop - columns.start)
    if not shape[1]:
        return torch.zeros(batch, *shape, dtype=torch.bool, device=attention.q.device)
    told = allowed(attention.plan.mask, pairs(attention, head, rows, columns))
    return told.expand(batch, 1, *shape)[:, 0]


def pairs(attention: Attention, head: int, rows: slice, columns: slice) -> Pairs:
    """Who sits where, in one head."""
    plan, q = attention.plan, attention.q
    made = make_pairs(plan.queries, plan.keys, heads=1, device=q.device, batch=q.shape[0], rows=rows, columns=columns)
    return made._replace(head=torch.full_like(made.head, head))
