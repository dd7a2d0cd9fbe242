"""How far a mechanism is from exact attention on a model's own queries, keys and values, head by head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.approximate.gather import Given
from regard.approximate.stand_in import StandIn, exact
from regard.attention import Mechanism, Plan


class HeadError(NamedTuple):
    """One head of one layer."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    error: float  # |found - exact| / |exact| of the outputs, over all places: 0 is exact, 1 as bad as nothing at all
    variation: float  # half the sum of |found - exact| weights, mean over rows: 0 is exact, 1 nothing in common


@torch.no_grad()
def errors(layer: int, one: StandIn, given: Given) -> list[HeadError]:
    """Every head of a layer."""
    want = exact(given, one.mask)
    assert want.weights is not None  # the reference gives them
    found = one.mechanism(given.q, given.k, given.v, one.plan).values
    far = (found - want.values).double().square().sum((0, 2, 3)).sqrt()
    whole = want.values.double().square().sum((0, 2, 3)).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    apart = (weights(one.mechanism, given, one.plan) - want.weights).abs().sum(-1).mean((0, 2)) / 2
    return [
        HeadError(layer, head, *both)
        for head, both in enumerate(zip((far / whole).tolist(), apart.tolist(), strict=True), start=1)
    ]


@torch.no_grad()
def weights(mechanism: Mechanism, given: Given, plan: Plan) -> Tensor:
    """The weights [B, H, N, N] of any mechanism whose outputs are linear in the values: what it makes of unit vectors.

    As many values at a time as a head is wide, since some mechanisms take no others.
    """
    batch, groups, length, width = given.v.shape
    unit = torch.eye(length, dtype=given.v.dtype, device=given.v.device)
    columns = []
    for first in range(0, length, width):
        part = unit[:, first : first + width]
        value = part.new_zeros(length, width)
        value[:, : part.shape[1]] = part
        shown = value.expand(batch, groups, length, width)
        columns.append(mechanism(given.q, given.k, shown, plan).values[..., : part.shape[1]])
    return torch.cat(columns, dim=-1)
