"""One weight worked out by hand: q·k, scale, bias, mask, softmax, times v (Vaswani et al. 2017, eq. 1).

And one whole row of weights, which is what a reader hovers over. Both compute one row and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.attention import Additive, General, HardLookup, Softmax, SoftmaxNormalizer, TopKSoftmax
from regard.errors import UserError
from regard.look.capture.strips import Band, Strip, adjusted, compared, strip
from regard.look.capture.trace import Attention

TOP = 64  # keys of a row that are told
HIDDEN = "the mask hides it"


def row(attention: Attention, head: int, query: int) -> dict[str, Any]:
    """The greatest weights of one query, its entropy in nats, and how many keys it sees."""
    found = _row(attention, head, query)
    weights = found.weights[0, 0]
    best = weights.topk(min(TOP, len(weights)))
    told = [
        [key, weight] for key, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True) if weight > 0
    ]
    entropy = float(torch.special.entr(weights).sum())
    return {"query": query, "weights": told, "entropy": entropy, "visible_keys": int(found.count())}


@torch.no_grad()
def cell(attention: Attention, head: int, query: int, key: int) -> dict[str, Any]:
    """Every number on the way from a query and a key to what the key's value adds to the answer."""
    mechanism, here = _softmax_mechanism(attention), slice(query, query + 1)
    found = _row(attention, head, query)
    weights, seen = found.weights[0, 0], found.seen[0, 0]  # [K]
    q, k = compared(attention, head, here, slice(key, key + 1))
    q, k, terms, kind = _terms(attention, q[0, 0, 0], k[0, 0, 0])
    scale = mechanism.call(attention.q, attention.k, attention.k, attention.plan).factor
    dot = float(mechanism.score(*compared(attention, head, here, slice(key, key + 1))))
    scores = adjusted(attention, head, _whole(attention, query))[0, 0]  # [K], scaled and biased
    biased = float(scores[key])
    v = _values(attention, head)  # [K, E]
    why = None if seen[key] else HIDDEN
    if why is None and isinstance(mechanism.normalizer, TopKSoftmax) and weights[key] == 0:
        why = f"it is not among the {mechanism.normalizer.k} best keys"
    return {
        "score": kind,
        "q": q.tolist(),
        "k": k.tolist(),
        "terms": terms.tolist(),
        "dot": dot,
        "scale": scale,
        "scaled": dot * scale,
        "bias": None if mechanism.bias is None else biased - dot * scale,
        "biased": biased,
        "temperature": _temperature(mechanism),
        "allowed": why is None,
        "reason": why,
        **_softmax(attention, scores, seen, weights, key),
        "weight": float(weights[key]),
        "v": v[key].tolist(),
        "contribution": (weights[key] * v[key]).tolist(),
        "output": (weights @ v).tolist(),
    }


def _softmax_mechanism(attention: Attention) -> Softmax:
    """The mechanism, if a weight follows from one score per head and pair."""
    mechanism = attention.mechanism
    if not isinstance(mechanism, Softmax) or not mechanism.per_head:
        name = type(mechanism).__name__
        raise UserError(f"a weight of {name} does not follow from one score, so it cannot be shown step by step")
    return mechanism


def _temperature(mechanism: Softmax) -> float:
    """What the scores are divided by; 0 for hard lookup."""
    normalizer = mechanism.normalizer
    if isinstance(normalizer, HardLookup):
        return 0.0
    return normalizer.temperature if isinstance(normalizer, SoftmaxNormalizer | TopKSoftmax) else 1.0


def _row(attention: Attention, head: int, query: int) -> Strip:
    return strip(attention, head, _whole(attention, query))


def _whole(attention: Attention, query: int) -> Band:
    """One query over all keys, the mask asked for each."""
    keys = slice(0, attention.k.shape[2])
    return Band(slice(query, query + 1), keys, keys)


def _values(attention: Attention, head: int) -> Tensor:
    """The values [K, E] that a head mixes; an attention without them has none of width zero."""
    v = attention.v
    if v is None:
        return attention.k.new_zeros(attention.k.shape[2], 0)
    group = attention.q.shape[1] // v.shape[1]
    return v[0, head // group].to(torch.promote_types(v.dtype, torch.float32))


def _terms(attention: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, str]:
    """What is multiplied and summed up: the two sides as they meet, the terms of the sum, and the score's kind.

    A general score turns the query first; an additive one weighs tanh(W q + U k), the two sides' sum.
    """
    score = _softmax_mechanism(attention).score
    if isinstance(score, General):
        q = q @ score.weight
        return q, k, q * k, "general"
    if isinstance(score, Additive):
        q, k = score.query(q), score.key(k)
        return q, k, score.out.weight[0] * (q + k).tanh(), "additive"
    return q, k, q * k, "dot"


def _softmax(attention: Attention, scores: Tensor, seen: Tensor, weights: Tensor, key: int) -> dict[str, float | None]:
    """exp(s - max) and its sum over the row, whose quotient is the weight (softmax and hard top-k only)."""
    normalizer = _softmax_mechanism(attention).normalizer
    hard = isinstance(normalizer, TopKSoftmax) and normalizer.softness == 0
    kept = seen & (weights > 0) if hard else seen
    if not kept.any() or not (hard or isinstance(normalizer, SoftmaxNormalizer)):
        return {"max": None, "exp": None, "sum": None}
    scores = scores / _temperature(_softmax_mechanism(attention))
    most = float(scores[kept].max())
    exp = math.exp(float(scores[key]) - most) if kept[key] else 0.0
    return {"max": most, "exp": exp, "sum": float((scores[kept] - most).exp().sum())}
