"""Entropy of every row by a fused kernel, where that is exact.

With plain dot scores s_j = β·q·k_j the entropy of softmax(s) is lse(s) - Σ w_j s_j = lse - β·q·Attn(q, k, v=k): an
attention whose values are its keys. PyTorch's CPU kernel gives the log-sum-exp beside the mix. A bias or a soft cap
bends the scores, so that Σ w_j s_j = ∂lse/∂β is no such mix: there, the blocked reducer (`reducers.Entropy`) counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention import Causal, Dot, Full, Range, Softmax, SoftmaxNormalizer
from regard.look.capture.trace import Attention
from regard.look.statistics.reducers import Entropy, reduce

#: Of a difference of two numbers up to this size, float32 keeps five places behind the point.
GREATEST = 64.0


def refuses(attention: Attention) -> list[str]:
    """Why the fused way cannot do this attention; an empty list is a yes."""
    mechanism, plan, q, k = attention.mechanism, attention.plan, attention.q, attention.k
    if not isinstance(mechanism, Softmax) or not isinstance(mechanism.normalizer, SoftmaxNormalizer):
        return ["the weights are no softmax"]
    plain = isinstance(plan.queries, Range) and isinstance(plan.keys, Range)
    causal = isinstance(plan.mask, Causal) and plan.own
    call = mechanism.call(q, k, k, plan)
    rules = {
        "the kernel that tells the log-sum-exp is the CPU's, for float32": q.device.type == "cpu"
        and q.dtype == k.dtype == torch.float32,
        "scores are no plain products": isinstance(mechanism.score, Dot),
        "a bias or a soft cap bends the scores": mechanism.bias is None,
        "the mask is neither full nor causal over the own text": plain and (causal or isinstance(plan.mask, Full)),
        "the scale is not above zero": call.factor > 0,
    }
    found = [reason for reason, holds in rules.items() if not holds]
    if not found and _bound(q, k, call.factor / call.temperature) > GREATEST:
        found.append("scores may be so large that their difference loses digits")
    return found


def entropy(attention: Attention) -> tuple[Tensor, Tensor]:
    """The entropy of each row in nats and how many keys it sees, [B, H, Q] each: fused where exact, else blocked."""
    if refuses(attention):
        measure = Entropy()
        reduce(attention, [measure])
        return measure.values, measure.seen
    return fused(attention)


@torch.no_grad()
def fused(attention: Attention) -> tuple[Tensor, Tensor]:
    """For attentions that `refuses` has nothing against."""
    mechanism, plan, q = attention.mechanism, attention.plan, attention.q
    k = attention.k.repeat_interleave(q.shape[1] // attention.k.shape[1], dim=1)
    causal = isinstance(plan.mask, Causal)
    assert isinstance(mechanism, Softmax)
    call = mechanism.call(q, k, k, plan)
    scale = call.factor / call.temperature
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mixed, lse = kernel(q, k, k, 0.0, causal, scale=scale)
    values = lse - scale * (q * mixed).sum(-1)
    keys = torch.full((q.shape[2],), float(k.shape[2]))
    seen = torch.arange(1.0, q.shape[2] + 1) if causal else keys
    return values.clamp_(min=0), seen.expand(values.shape)


def _bound(q: Tensor, k: Tensor, scale: float) -> float:
    """No score is greater (Cauchy and Schwarz)."""
    return float(q.norm(dim=-1).amax() * k.norm(dim=-1).amax()) * scale
