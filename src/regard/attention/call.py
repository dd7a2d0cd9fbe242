"""The operator: a call, its plan, its result, and the definition of attention, written once.

The definition is score, scale, bias, mask, normalize, dropout, mix. ``Call`` is a NamedTuple because those trace under
``torch.compile(fullgraph=True)`` (docs/decisions.md).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from regard.attention.masks.mask import Mask
from regard.attention.normalizer import Normalizer, SoftmaxNormalizer
from regard.attention.score import Bias, Dot, Score
from regard.attention.slots import AnySlots, Pairs, make_pairs, valid


class Plan(NamedTuple):
    """The preparation of a backend for one mask and its slots: made once per forward pass, used by every layer.

    ``same_tokens``: query i and key i are the same token, for every i. Fast paths need it (``is_causal`` means that key
    i is not after query i) and cannot see it from the tensors: it holds for self-attention over a whole text, not for
    cross-attention and not for a decoding step over a KV cache.
    """

    mask: Mask
    queries: AnySlots
    keys: AnySlots
    same_tokens: bool
    backend: str = ""
    prepared: Any = None  # what ``backend`` returned from its ``prepare``
    bias: Bias | None = None  # of this forward pass, such as a graph's; applied after the mechanism's own

    @property
    def rows(self) -> int:
        """The number of batch rows that it distinguishes; 1: all rows of a batch share it."""
        return max(self.mask.rows, self.queries.rows, self.keys.rows)

    @property
    def mask_count(self) -> int:
        """The number of masks [Q, K] that it distinguishes, by row and head."""
        return self.rows * self.mask.distinct_heads


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
    weights: Tensor | None = None


class SavedTensors(FunctionCtx):
    """The context of an autograd function; one with further attributes is a subclass."""

    saved_tensors: tuple[Tensor, ...]


class Backend:
    """An implementation of the operator."""

    name: str

    def refuses(self, call: Call) -> list[str]:
        """Every reason why it cannot run a call; empty: it can."""
        return []

    def prepare(self, plan: Plan, device: torch.device) -> object:
        """What ``run`` needs for every call with this plan; it becomes ``plan.prepared``."""

    def run(self, call: Call) -> Out:
        raise NotImplementedError


def applying(reasons: dict[str, bool]) -> list[str]:
    """Of a table of reasons those that apply."""
    return [reason for reason, applies in reasons.items() if applies]


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
    if isinstance(call.score, Dot) and q.shape[-1] != k.shape[-1]:
        errors.append(f"q has width {q.shape[-1]} and k {k.shape[-1]}; dot products need the same")
    if q.shape[1] % k.shape[1]:
        errors.append(f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly")
    if q.shape[2] != plan.queries.length or k.shape[2] != plan.keys.length:
        planned = f"the plan is for {plan.queries.length} queries and {plan.keys.length} keys"
        errors.append(f"{planned}; the tensors hold {q.shape[2]} and {k.shape[2]}")
    return errors


def in_one_type(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, the dtype that it would choose, for kernels and backward passes that it does not cast for."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) if x.dtype != torch.float64 else x for x in tensors)


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
