"""A mechanism that replaces the attention of one layer: built for the same heads, planned over the same text.

Some mechanisms have no causal form (the projections of Linformer mix all positions). Those are measured on the
non-causal version of the layer, with the same queries, keys and values and no mask, and never put into a causal model,
where they would leak future tokens.

Parameters of the mechanism that the trained model does not have (Linformer's projections) are fitted by gradient
descent to the outputs of the model's own attention, on other windows than those of the errors; everything else stays as
trained. Linformer's projections start as means over equal segments of the text, which at k = N is the identity.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import AttentionConfig, Full, LayerSpec, Mask, Mechanism, Plan
from regard.attention.call import repeat_kv
from regard.attention.mechanisms.linformer import Linformer
from regard.errors import UserError
from regard.look.capture.observe import observe
from regard.models.gpt import GPT

FIT_STEPS, FIT_RATE = 60, 0.003
CLOSE = 1e-9  # a squared relative error that needs no fitting


class AttentionInputs(NamedTuple):
    """One attention of one forward pass. A repeated block gives several with the same name."""

    name: str  # the mechanism's module path
    mechanism: Mechanism
    q: Tensor  # [B, H, N, D]
    k: Tensor  # [B, G, N, D]
    v: Tensor  # [B, G, N, E]
    plan: Plan


class Replacement(NamedTuple):
    """A mechanism for one layer, and the mask over which it is measured."""

    mechanism: Mechanism
    mask: Mask  # of the model's own attention in this comparison
    plan: Plan
    refusal: str | None = None  # why it cannot be used in the model: it is measured without the model's mask


class HeadError(NamedTuple):
    """One head of one layer."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    error: float  # |replaced - own| / |own| of the outputs, over all positions: 0 is exact, 1 like zeros
    variation: float  # half the sum of |replaced - own| weights, mean over rows: 0 is exact, 1 disjoint


def attention_inputs(model: GPT, tokens: Tensor) -> list[AttentionInputs]:
    """The inputs of every attention with weights that the model computes for tokens [B, N], in order."""
    observed, _ = observe(model, lambda: model(tokens), values=True)
    return [
        AttentionInputs(one.name, one.mechanism, one.q, one.k, one.v, one.plan)
        for one in observed
        if one.mechanism.unobservable is None and not one.mechanism.recurrent and one.v is not None
    ]


def make_replacement(config: AttentionConfig, given: AttentionInputs, context: int) -> Replacement:
    """The mechanism of ``config`` for this layer; a UserError says why there is none."""
    spec = LayerSpec(given.q.shape[1], given.k.shape[1], given.q.shape[3], context, given.mechanism.bias)
    mechanism = config.mechanism(spec).to(given.q).eval()
    if isinstance(mechanism, Linformer):
        init_segment_means(mechanism, given.k.shape[2])

    def plan(mask: Mask) -> Plan:
        return mechanism.plan(mask & config.pattern(), given.plan.queries, like=given.q)

    try:
        return Replacement(mechanism, given.plan.mask, plan(given.plan.mask))
    except UserError as refusal:
        try:
            return Replacement(mechanism, Full(), plan(Full()), str(refusal))
        except UserError:
            raise refusal from None


@torch.no_grad()
def init_segment_means(mechanism: Linformer, length: int) -> None:
    """Set each projection row to the mean over one segment of the first ``length`` tokens."""
    count = min(mechanism.summaries, length)
    place = torch.arange(length) * count // length  # the segment of each token
    means = torch.nn.functional.one_hot(place, count).T.float()
    mechanism.projections.zero_()
    mechanism.projections[:, :, :count, :length] = (means / means.sum(1, keepdim=True)).to(mechanism.projections)


@torch.no_grad()
def own_outputs(given: AttentionInputs, mask: Mask) -> tuple[Tensor, Tensor]:
    """The outputs [B, H, N, E] and weights [B, H, N, N] of the model's own attention over a mask."""
    weights = given.mechanism.weights(given.q, given.k, given.plan._replace(mask=mask))
    assert weights is not None  # `attention_inputs` takes observable mechanisms only
    return weights @ repeat_kv(given.v, weights.shape[1]), weights


@torch.no_grad()
def fit(replacement: Replacement, given: AttentionInputs, steps: int = FIT_STEPS) -> bool:
    """Fit the mechanism's own parameters to the outputs of the model's own attention; False if it has none.

    The step with the lowest error on the last quarter of the windows is kept, including the start, because so many
    parameters overfit a few windows. The bias of the model's position encoding stays as trained.
    """
    trained = {id(parameter) for parameter in given.mechanism.parameters()}
    own = [p for p in replacement.mechanism.parameters() if p.requires_grad and id(p) not in trained]
    if not own:
        return False
    wanted, _ = own_outputs(given, replacement.mask)
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


@torch.no_grad()
def errors(layer: int, replacement: Replacement, given: AttentionInputs) -> list[HeadError]:
    """The errors of every head of a layer."""
    wanted, wanted_weights = own_outputs(given, replacement.mask)
    outputs = replacement.mechanism(given.q, given.k, given.v, replacement.plan).values
    error, whole = (x.double().square().sum((0, 2, 3)).sqrt() for x in (outputs - wanted, wanted))
    error = error / whole.clamp(min=torch.finfo(torch.float64).tiny)
    moved = unit_vector_weights(replacement.mechanism, given, replacement.plan) - wanted_weights
    variation = moved.abs().sum(-1).mean((0, 2)) / 2
    return [
        HeadError(layer, h, *both) for h, both in enumerate(zip(error.tolist(), variation.tolist(), strict=True), 1)
    ]


@torch.no_grad()
def unit_vector_weights(mechanism: Mechanism, given: AttentionInputs, plan: Plan) -> Tensor:
    """The weights [B, H, N, N] of any mechanism whose outputs are linear in the values: its outputs for unit vectors.

    Computed for as many unit vectors at a time as a head is wide, because some mechanisms require this width.
    """
    batch, groups, length, width = given.v.shape
    columns = []
    for first in range(0, length, width):
        unit = torch.eye(length, width, dtype=given.v.dtype, device=given.v.device).roll(first, 0)
        columns.append(mechanism(given.q, given.k, unit.expand(batch, groups, length, width), plan).values)
    return torch.cat(columns, dim=-1)[..., :length]


@contextmanager
def replaced(model: GPT, config: AttentionConfig, mechanisms: dict[int, Mechanism]) -> Iterator[GPT]:
    """The model with these mechanisms in these blocks (counted from 0), over the model's mask and ``config``'s pattern.

    On exit the model is restored.
    """
    blocks = model.blocks.layers[:: model.config.repeat]
    before = model.masks, model.mask_of_layer, [block.attention.mechanism for block in blocks]
    block_of_layer = [i // model.config.repeat for i in range(model.config.layers)]
    # Layers with the same mask and the same kind of mechanism share a plan.
    uses = [(mask, block in mechanisms) for mask, block in zip(model.mask_of_layer, block_of_layer, strict=True)]
    distinct = list(dict.fromkeys(uses))
    try:
        model.masks = [model.masks[mask] & config.pattern() if new else model.masks[mask] for mask, new in distinct]
        model.mask_of_layer = [distinct.index(use) for use in uses]
        for number, mechanism in mechanisms.items():
            blocks[number].attention.mechanism = mechanism
        yield model
    finally:
        model.masks, model.mask_of_layer = before[:2]
        for block, mechanism in zip(blocks, before[2], strict=True):
            block.attention.mechanism = mechanism
