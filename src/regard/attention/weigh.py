"""The definition of attention, written once: score, scale, bias, mask, normalize, dropout, mix."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Call, Out, allowed
from regard.attention.slots import Pairs


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, G, K, D] for every query head, [B, H, K, D]: heads 0 .. H/G - 1 share key/value head 0."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def score(call: Call, q: Tensor, k: Tensor, pairs: Pairs, dtype: torch.dtype | None = None) -> Tensor:
    """Scaled and biased scores [B, H, Q, K]; ``dtype`` is that of scale, bias and result (default: of the products)."""
    scores = call.score(q, repeat_kv(k, q.shape[1]))
    scores = (scores if dtype is None else scores.to(dtype)) * call.factor
    return scores if call.bias is None else call.bias.adjust(scores, pairs)


def weigh(call: Call, pairs: Pairs, visible: Tensor | None = None) -> Tensor:
    """The weights [B, H, Q, K] of the call's queries over its keys, which are those of ``pairs``.

    ``visible`` are the pairs to consider (default: those that the plan's mask allows).
    """
    scores = score(call, call.q, call.k, pairs)
    visible = allowed(call.plan.mask, pairs) if visible is None else visible
    return call.normalizer.normalize(scores, visible.expand(scores.shape))


def mix(call: Call, pairs: Pairs, visible: Tensor | None = None) -> Out:
    """The weighted values [B, H, Q, E], and the weights before dropout if the call wants them."""
    weights = weigh(call, pairs, visible)
    mixed = F.dropout(weights, call.dropout) if call.dropout else weights
    return Out(mixed @ repeat_kv(call.v, call.q.shape[1]), weights if call.weights else None)
