"""One weight computed step by step: q·k, scale, bias, mask, softmax, times v (Vaswani et al. 2017, eq. 1).

Also one row of weights. Both compute one row only.
"""

import math

import torch
from torch import Tensor

from regard.attention import Additive, General, HardLookup, Mechanism, Softmax, SoftmaxNormalizer, TopKSoftmax
from regard.errors import UserError
from regard.generate.sampling import in_float32
from regard.look.capture.observe import Attention
from regard.look.capture.strips import StripRange, biased_scores, head_inputs, strip
from regard.runs.disk import JsonObject

TOP = 64  # keys of a row that are listed
HIDDEN = "the mask hides it"


def row(attention: Attention, head: int, query: int) -> JsonObject:
    """The largest weights of one query, its entropy in nats, and the number of keys it sees."""
    one = strip(attention, head, _row(attention, query))
    weights = one.weights[0, 0]
    best = weights.topk(min(TOP, len(weights)))
    listed = [[key, w] for key, w in zip(best.indices.tolist(), best.values.tolist(), strict=True) if w > 0]
    return {"query": query, "weights": listed, "entropy": float(one.entropy()), "visible_keys": int(one.count())}


def not_stepwise(mechanism: Mechanism) -> str | None:
    """Why a weight cannot be shown step by step; None if it can."""
    if isinstance(mechanism, Softmax) and mechanism.per_head:
        return None
    name = type(mechanism).__name__
    return f"a weight of {name} does not follow from one score, so it cannot be shown step by step"


@torch.no_grad()
def cell(attention: Attention, head: int, query: int, key: int) -> JsonObject:
    """Every number between a query and a key and the contribution of the key's value to the output."""
    mechanism, part = attention.mechanism, _row(attention, query)
    if why_not := not_stepwise(mechanism):
        raise UserError(why_not)
    assert isinstance(mechanism, Softmax)
    one = strip(attention, head, part)
    weights, seen = one.weights[0, 0], one.seen[0, 0]  # [K]
    pair = head_inputs(attention, head, part.rows, slice(key, key + 1))
    q, k, terms, kind = _terms(mechanism, *(x[0, 0, 0] for x in pair))
    call = mechanism.call(attention.q, attention.k, attention.k, attention.plan)
    scale = call.factor
    dot = float(mechanism.score(*pair))
    scores = biased_scores(attention, head, part)[0, 0]  # [K], scaled and biased
    biased = float(scores[key])
    assert attention.v is not None  # a trace records the values
    v = in_float32(attention.v[0, head * attention.v.shape[1] // attention.heads])  # [K, E]
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
        "bias": None if call.bias is None else biased - dot * scale,
        "biased": biased,
        "temperature": _temperature(mechanism),
        "normalizer": type(mechanism.normalizer).__name__,
        "allowed": why is None,
        "reason": why,
        **_softmax(mechanism, scores, seen, weights, key),
        "weight": float(weights[key]),
        "v": v[key].tolist(),
        "contribution": (weights[key] * v[key]).tolist(),
        "output": (weights @ v).tolist(),
    }


def _temperature(mechanism: Softmax) -> float:
    """The divisor of the scores; 0 for hard lookup."""
    normalizer = mechanism.normalizer
    if isinstance(normalizer, HardLookup):
        return 0.0
    return normalizer.temperature if isinstance(normalizer, SoftmaxNormalizer | TopKSoftmax) else 1.0


def _row(attention: Attention, query: int) -> StripRange:
    """One query over all keys, with the mask evaluated for each."""
    keys = slice(0, attention.k.shape[2])
    return StripRange(slice(query, query + 1), keys, keys)


def _terms(mechanism: Softmax, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, str]:
    """The projected query and key, the terms whose sum is the score, and the score's kind.

    A general score projects the query first; an additive one weighs tanh(W q + U k).
    """
    score = mechanism.score
    if isinstance(score, General):
        q = q @ score.weight
        return q, k, q * k, "general"
    if isinstance(score, Additive):
        q, k = score.query(q), score.key(k)
        return q, k, score.out.weight[0] * (q + k).tanh(), "additive"
    return q, k, q * k, "dot"


def _softmax(mechanism: Softmax, scores: Tensor, seen: Tensor, weights: Tensor, key: int) -> dict[str, float | None]:
    """exp(s - max) and its sum over the row, whose quotient is the weight (softmax and hard top-k only)."""
    normalizer = mechanism.normalizer
    hard = isinstance(normalizer, TopKSoftmax) and normalizer.softness == 0
    kept = seen & (weights > 0) if hard else seen
    if not kept.any() or not (hard or isinstance(normalizer, SoftmaxNormalizer)):
        return {"max": None, "exp": None, "sum": None}
    scores = scores / _temperature(mechanism)
    most = float(scores[kept].max())
    exp = math.exp(float(scores[key]) - most) if kept[key] else 0.0
    return {"max": most, "exp": exp, "sum": float((scores[kept] - most).exp().sum())}
