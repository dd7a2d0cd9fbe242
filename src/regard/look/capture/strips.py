"""Exact weights of one head, a strip of queries at a time: Q×K is never in memory, and masked blocks are not computed.

The mask's block bounds (`attention/tiling/tile.py`) give the keys that a strip can see, and those for which the
mask must be evaluated pair by pair: in a causal map, only the strip along the diagonal.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import Dot, General, Pairs, Softmax, SoftmaxNormalizer
from regard.attention.call import allowed
from regard.attention.slots import make_pairs
from regard.attention.tiling.tile import bounds, layout
from regard.generate.sampling import in_float32
from regard.look.capture.observe import Attention, dense_weights

ROWS = 128  # queries of a strip: their scores over thousands of keys fit in the CPU cache
KEYS = 128  # keys per block of the mask's bounds
SCORES = 2**16  # of a strip with an additive score, which computes a hidden vector per score


class StripRange(NamedTuple):
    """Some queries, the range of keys that they may see, and the range in which the mask must be evaluated."""

    rows: slice
    columns: slice
    masked: slice  # a part of ``columns``; empty: every query sees every key of ``columns``


class Strip(NamedTuple):
    """The weights of some queries of one head over the keys that they may see; all other weights are zero."""

    part: StripRange
    weights: Tensor  # [B, q, k]
    seen: Tensor  # [B, q, masked], the allowed pairs
    scores: Tensor | None = None  # [B, q, k], if the weights are their softmax

    def entropy(self) -> Tensor:  # [B, q]
        """-Σ p log p in nats, p = |w| / Σ |w| (weights may be negative or sum to less); 0 without visible keys.

        From scores it is log Σ exp(s - max) - Σ w (s - max): one logarithm per row instead of one per weight.
        """
        if self.scores is None:
            size = self.weights.abs()
            return torch.special.entr(size / size.sum(-1, keepdim=True).clamp(min=1e-30)).sum(-1)
        below = self.scores - self.scores.amax(-1, keepdim=True)
        most = self.weights.amax(-1)
        return torch.where(most > 0, -most.log() - (self.weights * below).sum(-1), 0).clamp_(min=0)

    def count(self) -> Tensor:  # [B, q]
        """The number of keys that each query sees."""
        return self.seen.sum(-1) + self.weights.shape[-1] - self.seen.shape[-1]

    def first(self) -> Tensor:  # [B, q]
        """The first key that each query sees; undefined if it sees none."""
        _, columns, masked = self.part
        if not self.seen.shape[-1] or masked.start > columns.start:
            return self.seen.new_full(self.weights.shape[:2], columns.start, dtype=torch.long)
        first = columns.start + self.seen.long().argmax(-1)
        return torch.where(self.seen.any(-1), first, min(masked.stop, columns.stop - 1))


def strip_ranges(attention: Attention, size: int = ROWS) -> list[StripRange]:
    """All queries in strips of ``size``."""
    plan, device = attention.plan, attention.q.device
    if isinstance(attention.mechanism, Softmax) and not isinstance(attention.mechanism.score, Dot | General):
        size = min(size, 1 << max(1, SCORES // plan.keys.length).bit_length() - 1)
    verdict = layout(plan.mask, bounds(plan.queries, device, size), bounds(plan.keys, device, KEYS))
    may, must = verdict.may.flatten(0, 1).any(0).cpu(), verdict.must.flatten(0, 1).all(0).cpu()
    ranges = []
    for number, low in enumerate(range(0, plan.queries.length, size)):
        rows = slice(low, min(low + size, plan.queries.length))
        near = may[number].nonzero()[:, 0].tolist() or [0]  # without visible keys: one masked block
        unsure = (~must[number, near[0] : near[-1] + 1]).nonzero()[:, 0].tolist()
        columns = _span(near[0], near[-1], plan.keys.length)
        masked = _span(near[0] + unsure[0], near[0] + unsure[-1], plan.keys.length) if unsure else slice(0, 0)
        ranges.append(StripRange(rows, columns, masked))
    return ranges


def _span(first: int, last: int, length: int) -> slice:
    return slice(first * KEYS, min((last + 1) * KEYS, length))


@torch.no_grad()
def strip(attention: Attention, head: int, part: StripRange) -> Strip:
    """The weights of one strip."""
    mechanism, plan = attention.mechanism, attention.plan
    pairs = _pairs(attention, head, part.rows, part.masked)
    shape = (attention.q.shape[0], 1, part.rows.stop - part.rows.start, part.masked.stop - part.masked.start)
    seen = allowed(plan.mask, pairs).expand(shape)[:, 0]
    if not isinstance(mechanism, Softmax) or not mechanism.per_head:  # computed for all heads together
        return Strip(part, dense_weights(attention, part.rows)[:, head, :, part.columns], seen)
    scores = biased_scores(attention, head, part)
    masked = slice(part.masked.start - part.columns.start, part.masked.stop - part.columns.start)
    if not isinstance(mechanism.normalizer, SoftmaxNormalizer):
        whole = torch.ones_like(scores, dtype=torch.bool)
        whole[..., masked] = seen
        return Strip(part, mechanism.normalizer.normalize(scores, whole), seen)
    if mechanism.normalizer.temperature != 1:
        scores = scores.div_(mechanism.normalizer.temperature)
    if seen.shape[-1]:
        scores[..., masked] = scores[..., masked].masked_fill_(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if seen.shape[-1] == weights.shape[-1]:  # only then can a query see nothing
        weights.masked_fill_(~seen.any(-1, keepdim=True), 0)
    return Strip(part, weights, seen, scores)


def biased_scores(attention: Attention, head: int, part: StripRange) -> Tensor:
    """Scores [B, q, k], scaled and biased, before temperature and mask."""
    mechanism = attention.mechanism
    assert isinstance(mechanism, Softmax)
    q, k = head_inputs(attention, head, part.rows, part.columns)
    call = mechanism.call(q, k, k, attention.plan)
    scores = mechanism.score(q, k).mul_(call.factor)
    if call.bias is not None:
        scores = call.bias.adjust(scores, _pairs(attention, head, part.rows, part.columns))
    return scores[:, 0]


def head_inputs(attention: Attention, head: int, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
    """Queries [B, 1, q, D] and keys [B, 1, k, D] of a head, in float32 or better."""
    group = attention.q.shape[1] // attention.k.shape[1]
    q = attention.q[:, head : head + 1, rows]
    return in_float32(q), in_float32(attention.k[:, head // group : head // group + 1, columns])


def _pairs(attention: Attention, head: int, rows: slice, columns: slice) -> Pairs:
    """The pairs of some queries and keys in one head."""
    plan, q = attention.plan, attention.q
    pairs = make_pairs(plan.queries, plan.keys, heads=1, device=q.device, batch=q.shape[0], rows=rows, columns=columns)
    return pairs._replace(head=torch.full_like(pairs.head, head))
