"""The interface between mechanisms and backends: the call, its plan, and the result.

``Call`` is a NamedTuple because those trace under ``torch.compile(fullgraph=True)`` (docs/design.md, "Measurements
behind decisions").
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.attention.bias import Bias
from regard.attention.masks.mask import Mask
from regard.attention.normalizer import Normalizer, SoftmaxNormalizer
from regard.attention.score import Score
from regard.attention.slots import AnySlots, Pairs, make_pairs, valid


class Plan(NamedTuple):
    """The preparation of a backend for one mask and its slots: made once per forward pass, used by every layer.

    ``own``: queries and keys are the same tokens, which fast paths need to know and cannot see from the tensors.
    """

    mask: Mask
    queries: AnySlots
    keys: AnySlots
    own: bool
    backend: str
    prepared: Any

    @property
    def rows(self) -> int:
        """The number of batch rows that it distinguishes; 1: all rows of a batch share it."""
        return max(self.mask.rows, self.queries.rows, self.keys.rows)


class Call(NamedTuple):
    """One use of the operator. G divides H; with G < H it is grouped-query attention."""

    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    v: Tensor  # [B, G, K, E]
    plan: Plan
    score: Score
    normalizer: Normalizer  # no default: under a compiler a default may not be one of our own objects
    bias: Bias | None = None
    scale: float | None = None  # None: 1/√D for dot scores, 1 for others
    dropout: float = 0.0
    weights: bool = False  # return the weights too

    @property
    def factor(self) -> float:
        """The scale of the raw scores."""
        if self.scale is not None:
            return self.scale
        return 1 / math.sqrt(self.q.shape[-1]) if self.score.width_scaled else 1.0

    @property
    def temperature(self) -> float:
        """The temperature of the softmax, for backends that compute no other normalizer."""
        assert isinstance(self.normalizer, SoftmaxNormalizer)
        return self.normalizer.temperature


class Out(NamedTuple):
    """The mixed values, and the weights [B, H, Q, K] if the call requested them."""

    values: Tensor  # [B, H, Q, E]
    weights: Tensor | None


class Backend(Protocol):
    """An implementation of the operator. ``refuses`` lists every reason why it cannot run a call; empty: it can."""

    name: str

    def refuses(self, call: Call) -> list[str]: ...

    def prepare(self, plan: Plan, device: torch.device) -> Any: ...

    def run(self, call: Call) -> Out: ...


def dense_pairs(plan: Plan, q: Tensor) -> Pairs:
    """Every pair of a plan for q [B, H, Q, D], broadcastable to [B, H, Q, K]."""
    return make_pairs(plan.queries, plan.keys, heads=q.shape[1], device=q.device, batch=q.shape[0])


def allowed(mask: Mask, pairs: Pairs) -> Tensor:
    """The pairs that the mask allows and whose slots both hold tokens of one document."""
    return mask.allows(pairs) & valid(pairs)


def shape_errors(call: Call) -> list[str]:
    """Inconsistent shapes of the call, whatever the backend, each as a sentence."""
    q, k, v, plan = call.q, call.k, call.v, call.plan
    errors = []
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        errors.append(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not match")
    if q.shape[1] % k.shape[1]:
        errors.append(f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly")
    if q.shape[2] != plan.queries.length or k.shape[2] != plan.keys.length:
        errors.append(
            f"the plan is for {plan.queries.length} queries and {plan.keys.length} keys; "
            f"the tensors hold {q.shape[2]} and {k.shape[2]}"
        )
    return errors
