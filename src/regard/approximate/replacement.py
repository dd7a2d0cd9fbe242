"""A mechanism that replaces the attention of one layer: built for the same heads, planned over the same text.

Some mechanisms have no causal form (the projections of Linformer mix all positions). Those are measured on the
non-causal version of the layer, with the same queries, keys and values and no mask, and never put into a causal model,
where they would leak future tokens.

Parameters of the mechanism that the trained model does not have (Linformer's projections) are fitted by gradient
descent to the exact outputs, on other windows than those of the errors; everything else stays as trained.
Linformer's projections start as means over equal segments of the text, which at k = N is the identity, and exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.approximate.gather import Given
from regard.attention import AttentionConfig, Full, LayerSpec, Mask, Mechanism, Out, Plan
from regard.attention.call import repeat_kv
from regard.attention.mechanisms.linformer import Linformer
from regard.errors import UserError

FIT_STEPS, FIT_RATE = 60, 0.003
CLOSE = 1e-9  # a squared relative error that needs no fitting


class Replacement(NamedTuple):
    """A mechanism for one layer, and the mask over which it is measured."""

    mechanism: Mechanism
    mask: Mask  # of exact attention in this comparison
    plan: Plan
    causal: bool  # False: measured without the model's mask
    why_not: str | None = None  # why it cannot be used in the model


def make_replacement(config: AttentionConfig, given: Given, context: int) -> Replacement:
    """The mechanism of ``config`` for this layer; a UserError says why there is none."""
    bias = given.mechanism.bias
    spec = LayerSpec(given.q.shape[1], given.k.shape[1], given.q.shape[3], context, bias)
    mechanism = config.mechanism(spec).to(given.q).eval()
    if isinstance(mechanism, Linformer):
        init_segment_means(mechanism, given.k.shape[2])
    own, plain = given.plan.mask, Full()
    try:
        return Replacement(mechanism, own, _plan(mechanism, own & config.pattern(), given), True)
    except UserError as refusal:
        try:
            plan = _plan(mechanism, plain & config.pattern(), given)
        except UserError:
            raise refusal from None
        return Replacement(mechanism, plain, plan, False, str(refusal))


def _plan(mechanism: Mechanism, mask: Mask, given: Given) -> Plan:
    return mechanism.plan(mask, given.plan.queries, like=given.q)


@torch.no_grad()
def init_segment_means(mechanism: Linformer, length: int) -> None:
    """Set each projection row to the mean over one segment of the first ``length`` tokens."""
    count = min(mechanism.summaries, length)
    place = torch.arange(length) * count // length  # the segment of each token
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
def fit(replacement: Replacement, given: Given, steps: int = FIT_STEPS) -> bool:
    """Fit the mechanism's own parameters to the exact outputs; False if it has none.

    The step with the lowest error on the last quarter of the windows is kept, including the start, because so many
    parameters overfit a few windows. The bias of the model's position encoding stays as trained.
    """
    trained = {id(parameter) for parameter in given.mechanism.parameters()}
    own = [p for p in replacement.mechanism.parameters() if p.requires_grad and id(p) not in trained]
    if not own:
        return False
    wanted = exact(given, replacement.mask).values
    held_out = max(1, given.q.shape[0] // 4)
    training, validation = slice(0, max(1, given.q.shape[0] - held_out)), slice(-held_out, None)

    def error(rows: slice) -> Tensor:
        outputs = replacement.mechanism(given.q[rows], given.k[rows], given.v[rows], replacement.plan).values
        return (outputs - wanted[rows]).square().mean() / wanted[rows].square().mean()

    optimizer = torch.optim.Adam(own, lr=FIT_RATE)
    best, kept = error(validation).item(), [parameter.detach().clone() for parameter in own]
    for _ in range(steps if best > CLOSE else 0):
        with torch.enable_grad():
            error(training).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (now := error(validation).item()) < best:
            best, kept = now, [parameter.detach().clone() for parameter in own]
    for parameter, value in zip(own, kept, strict=True):
        parameter.copy_(value)
    return True
