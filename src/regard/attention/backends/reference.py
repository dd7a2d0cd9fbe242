"""The reference backend: the definition of attention. Every other backend is tested against it.

It builds every score and every weight, in the order in which the equation is read:
score, scale, bias, temperature, mask, cut, softmax, dropout, mix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.call import Call, Out, Plan, TopK, allowed, dense_pairs


class Reference:
    """Dense, exact, and able to do everything a call can ask for."""

    name = "reference"

    def refuses(self, call: Call) -> list[str]:
        return []

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        shared = call.q.shape[1] // call.k.shape[1]
        k, v = (x.repeat_interleave(shared, dim=1) if shared > 1 else x for x in (call.k, call.v))
        pairs = dense_pairs(call)
        scores = call.score(call.q, k) * call.factor  # [B,H,Q,K]
        if call.bias is not None:
            scores = call.bias.adjust(scores, pairs)
        seen = allowed(call.plan.mask, pairs).expand(scores.shape)
        weights = weigh(scores, seen, call.temperature, call.cut)
        mixed = F.dropout(weights, call.dropout) if call.dropout else weights
        return Out(mixed @ v, weights if call.weights else None)


def weigh(scores: Tensor, seen: Tensor, temperature: float, cut: TopK | None) -> Tensor:
    """Scores to weights. A row that sees nothing is zero with zero gradient: hence finite lows rather than -inf."""
    low = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~seen, low)
    if cut is not None and cut.softness == 0:
        seen = seen & best(scores, cut.k)
        scores = scores.masked_fill(~seen, low)
    if temperature == 0:  # the limit of the softmax: the best keys, in equal parts
        top = (scores == scores.amax(-1, keepdim=True)) & seen
        return top.to(scores.dtype) / top.sum(-1, keepdim=True).clamp(min=1)
    if temperature != 1:
        scores = (scores / temperature).masked_fill(~seen, low)
    if cut is not None and cut.softness > 0:
        few = seen.sum(-1, keepdim=True) <= cut.k  # no cut where there is nothing to cut
        scores = scores + F.logsigmoid(gate(scores, seen, cut)).masked_fill(few, 0)
        scores = scores.masked_fill(~seen, low)
    return scores.softmax(-1).masked_fill(~seen, 0)


def best(scores: Tensor, k: int) -> Tensor:
    """True at the ``k`` greatest scores of each row; of equal ones the earliest key, as ``torch.sort(stable=True)``."""
    chosen = scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)


def gate(scores: Tensor, seen: Tensor, cut: TopK) -> Tensor:
    """(s - t)/softness with the threshold t at which the gates σ(.) of the seen keys sum to k.

    t is found by bisection without gradients; one Newton step from there adds nothing to its value and gives it the
    exact implicit derivative dt/ds_i = g_i(1 - g_i) / Σ g(1 - g).
    """
    wanted = torch.minimum(torch.full_like(scores[..., :1], cut.k), seen.sum(-1, keepdim=True) - 0.5)
    flat = scores.detach()
    margin = cut.softness * 50
    low = flat.masked_fill(~seen, torch.inf).amin(-1, keepdim=True).clamp(max=1e30) - margin
    high = flat.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e30) + margin
    for _ in range(80):
        middle = (low + high) / 2
        over = (((flat - middle) / cut.softness).sigmoid() * seen).sum(-1, keepdim=True) > wanted
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    threshold = (low + high) / 2
    open_ = ((scores - threshold) / cut.softness).sigmoid() * seen
    slope = (open_ * (1 - open_)).sum(-1, keepdim=True).detach() / cut.softness
    step = (open_.sum(-1, keepdim=True) - wanted) / slope.clamp(min=torch.finfo(scores.dtype).tiny)
    threshold = threshold + (step - step.detach())
    return ((scores - threshold) / cut.softness).masked_fill(~seen, 0)
