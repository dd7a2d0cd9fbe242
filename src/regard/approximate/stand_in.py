"""A mechanism in the place of another: made for the same heads, planned over the same text, perhaps fitted.

Some mechanisms have no causal form (Linformer: its projections mix all positions, the future's too). Those are measured
on the non-causal version of the layer, the same queries, keys and values with everybody seeing everybody, and never put
into a causal model: its loss would be that of one that peeks.

What parameters a mechanism brings of its own (Linformer's projections) the trained model does not have. They are fitted
by gradient descent to the exact outputs, on a part of the text that the errors are not measured on; all else stays as
trained. Linformer's start as means over equal stretches of the text, which at k = N is the identity, and exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.approximate.gather import Given
from regard.attention import AttentionConfig, Full, LayerSpec, Mask, Mechanism, Out, Plan
from regard.attention.mechanisms.linformer import Linformer
from regard.attention.weigh import repeat_kv
from regard.errors import UserError

FIT_STEPS, FIT_RATE = 60, 0.003
CLOSE = 1e-9  # a squared relative error that needs no fitting


class StandIn(NamedTuple):
    """A mechanism for one layer, and over which mask it is measured."""

    mechanism: Mechanism
    mask: Mask  # of exact attention in this comparison
    plan: Plan
    causal: bool  # False: measured without the model's own mask
    why_not: str = ""  # why it cannot stand in the model itself


def stand_in(config: AttentionConfig, given: Given, context: int) -> StandIn:
    """The mechanism that ``config`` makes for this layer; a UserError says why there can be none."""
    bias = given.mechanism.bias
    sizes = LayerSpec(given.q.shape[1], given.k.shape[1], given.q.shape[3], context, bias)
    mechanism = config.mechanism(sizes).to(given.q).eval()
    if isinstance(mechanism, Linformer):
        stretches(mechanism, given.k.shape[2])
    own, plain = given.plan.mask, Full()
    try:
        return StandIn(mechanism, own, _plan(mechanism, own & config.pattern(), given), True)
    except UserError as refusal:
        try:
            plan = _plan(mechanism, plain & config.pattern(), given)
        except UserError:
            raise refusal from None
        return StandIn(mechanism, plain, plan, False, str(refusal))


def _plan(mechanism: Mechanism, mask: Mask, given: Given) -> Plan:
    return mechanism.plan(mask, given.plan.queries, like=given.q)


@torch.no_grad()
def stretches(mechanism: Linformer, length: int) -> None:
    """Each summary the mean of a stretch of the first ``length`` tokens."""
    count = min(mechanism.summaries, length)
    place = torch.arange(length) * count // length  # which summary a token belongs to
    means = torch.nn.functional.one_hot(place, count).T.float()
    mechanism.projections.zero_()
    mechanism.projections[:, :, :count, :length] = (means / means.sum(1, keepdim=True)).to(mechanism.projections)


@torch.no_grad()
def exact(given: Given, mask: Mask, v: Tensor | None = None) -> Out:
    """The model's own outputs [B, H, N, E] and weights [B, H, N, N] over a mask."""
    weights = given.mechanism.weights(given.q, given.k, given.plan._replace(mask=mask))
    assert weights is not None  # gather takes observable mechanisms only
    return Out(weights @ repeat_kv(given.v if v is None else v, weights.shape[1]), weights)


@torch.no_grad()
def fit(one: StandIn, given: Given, steps: int = FIT_STEPS) -> bool:
    """Fit the mechanism's own parameters to the exact outputs; False where it has none.

    The last quarter of the windows decides which step is kept, the start included: so many parameters learn a few
    windows by heart. A bias of the model's positions is not the mechanism's own: it stays as trained.
    """
    trained = {id(parameter) for parameter in given.mechanism.parameters()}
    own = [p for p in one.mechanism.parameters() if p.requires_grad and id(p) not in trained]
    if not own:
        return False
    wanted = exact(given, one.mask).values
    held = max(1, given.q.shape[0] // 4)
    learned, judged = slice(0, max(1, given.q.shape[0] - held)), slice(-held, None)

    def miss(rows: slice) -> Tensor:
        found = one.mechanism(given.q[rows], given.k[rows], given.v[rows], one.plan).values
        return (found - wanted[rows]).square().mean() / wanted[rows].square().mean()

    optimizer = torch.optim.Adam(own, lr=FIT_RATE)
    best, kept = miss(judged).item(), [parameter.detach().clone() for parameter in own]
    for _ in range(steps if best > CLOSE else 0):
        with torch.enable_grad():
            miss(learned).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (now := miss(judged).item()) < best:
            best, kept = now, [parameter.detach().clone() for parameter in own]
    for parameter, value in zip(own, kept, strict=True):
        parameter.copy_(value)
    return True
