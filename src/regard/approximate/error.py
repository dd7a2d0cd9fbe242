"""The error of a mechanism against exact attention on a model's own queries, keys and values, head by head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.approximate.gather import Given
from regard.approximate.replacement import Replacement, exact
from regard.attention import Mechanism, Plan


class HeadError(NamedTuple):
    """One head of one layer."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    error: float  # |approximate - exact| / |exact| of the outputs, over all positions: 0 is exact, 1 like zeros
    variation: float  # half the sum of |approximate - exact| weights, mean over rows: 0 is exact, 1 disjoint


@torch.no_grad()
def errors(layer: int, replacement: Replacement, given: Given) -> list[HeadError]:
    """The errors of every head of a layer."""
    want = exact(given, replacement.mask)
    assert want.weights is not None
    outputs = replacement.mechanism(given.q, given.k, given.v, replacement.plan).values
    error = (outputs - want.values).double().square().sum((0, 2, 3)).sqrt()
    whole = want.values.double().square().sum((0, 2, 3)).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    variation = (weights(replacement.mechanism, given, replacement.plan) - want.weights).abs().sum(-1).mean((0, 2)) / 2
    return [
        HeadError(layer, head, *both)
        for head, both in enumerate(zip((error / whole).tolist(), variation.tolist(), strict=True), start=1)
    ]


@torch.no_grad()
def weights(mechanism: Mechanism, given: Given, plan: Plan) -> Tensor:
    """The weights [B, H, N, N] of any mechanism whose outputs are linear in the values: its outputs for unit vectors.

    Computed for as many unit vectors at a time as a head is wide, because some mechanisms require this width.
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
