"""Linear attention: likenesses that factor, so that the past is one sum of constant size (Katharopoulos et al. 2020).

    out_i = φ(q_i)·Σ_j φ(k_j)ᵀ v_j  /  φ(q_i)·Σ_j φ(k_j)          (their eqs. 5 and 9)

Three forms of the same thing: every pair (``definition``; quadratic), chunks (``chunked.py``, ``rolled.py``; what
training uses), and a state that takes in token after token (``step``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.attention_config import AttentionConfig, Sizes
from regard.attention.cache import DecodeInput
from regard.attention.call import Out, Plan, allowed, dense_pairs
from regard.attention.masks.mask import Causal, Full, Mask
from regard.attention.mechanism import Mechanism
from regard.attention.mechanisms.chunked import Documents, at_once, both_ways
from regard.attention.mechanisms.chunked_cpu import ONES, floor, rolled
from regard.attention.mechanisms.features import FEATURES, FeatureName
from regard.attention.slots import EMPTY, AnySlots, Packed, Padded, Range, Slots
from regard.attention.weigh import repeat_kv
from regard.config import option
from regard.errors import UserError


class Sums(NamedTuple):
    """All that linear attention remembers, however long the text: Σ φ(k)ᵀ [v, 1], in float32 at least."""

    held: Tensor  # [B, G, F, E + ones]


class LinearAttention(Mechanism):
    """A weighted mean of the values with weights φ(q)·φ(k), in linear time. Not the softmax: another attention.

    Without ``normalise`` the sum instead of the mean, which the ``identity`` features need: theirs has no sign.
    A row whose likenesses all vanish is zero, like one that sees nothing.
    """

    exact = False

    def __init__(self, features: FeatureName = "elu", *, normalise: bool = True):
        super().__init__()
        self.features: FeatureName = features
        self.normalise = normalise

    def of_queries(self, q: Tensor) -> Tensor:
        """φ(q): [..., D] to [..., F]."""
        return FEATURES[self.features](q)

    def of_keys(self, k: Tensor) -> Tensor:
        """φ(k): [..., D] to [..., F]. Each key by itself: what depended on others would let a text see its future."""
        return FEATURES[self.features](k)

    def feature_count(self, width: int) -> int:
        return width

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if type(mask) not in (Full, Causal):
            raise UserError(
                f"linear attention keeps one sum over all that came before and cannot leave parts of it out, as {mask} "
                "asks; use a causal or full mask, or --model.attention softmax"
            )
        plan = super().plan(mask, queries, keys, like=like)
        if keys is not None or not isinstance(queries, Packed):
            return plan
        if isinstance(mask, Causal):
            return plan._replace(prepared=(Documents.of(queries.segment, causal=True),))
        both = [Documents.of(queries.segment, causal=False, backwards=way) for way in (False, True)]
        return plan._replace(prepared=tuple(both))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        with torch.autocast(q.device.type, enabled=False):  # sums choose their own widths
            return Out(self._mixed(q, k, v, plan).to(v.dtype), None)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        fq, fk, v = self._ready(q, k, v)
        plain = isinstance(plan.queries, Range | Padded) and isinstance(plan.keys, Range | Padded)
        if plan.own and isinstance(plan.mask, Causal) and not isinstance(plan.queries, Slots):
            values = self._causal(fq, fk, v, plan.prepared[0] if plan.prepared else None)
        elif plan.own and plan.prepared:
            values = self._mean(both_ways(fq, fk, self._beside_ones(v), *plan.prepared))
        elif plain and isinstance(plan.mask, Full):
            values = self._mean(read(fq, take(self._only(fk, plan.keys), self._beside_ones(v))))
        else:  # tokens in no order that a sum could follow
            values = self.definition(fq, fk, v, plan)
        return self._only(values, plan.queries)

    def definition(self, fq: Tensor, fk: Tensor, v: Tensor, plan: Plan) -> Tensor:
        """Every pair: Σ_j φ(q_i)·φ(k_j) v_j over the keys that the mask allows, divided by Σ_j φ(q_i)·φ(k_j)."""
        return self._mean(self._similarities(fq, fk, plan) @ self._beside_ones(repeat_kv(v, fq.shape[1])))

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        fq, fk, _ = self._ready(q, k, k)
        weights = self._similarities(fq, fk, plan)
        return weights / weights.sum(-1, keepdim=True).clamp(min=floor(fq.dtype)) if self.normalise else weights

    def _similarities(self, fq: Tensor, fk: Tensor, plan: Plan) -> Tensor:
        """φ(q_i)·φ(k_j) of the pairs that the mask allows, else 0: [B, H, Q, K]."""
        return (fq @ repeat_kv(fk, fq.shape[1]).mT) * allowed(plan.mask, dense_pairs(plan, fq))

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> Sums:
        shape = (batch, heads, self.feature_count(width), width + (ONES if self.normalise else 0))
        return Sums(like.new_zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32)))

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, memory: Sums, arrival: DecodeInput) -> Out:
        with torch.autocast(q.device.type, enabled=False):
            return Out(self._stepped(q, k, v, plan, memory.held).to(v.dtype), None)

    def _stepped(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, held: Tensor) -> Tensor:
        fq, fk, v = (x.to(held.dtype) for x in (self.of_queries(q), self.of_keys(k), v))
        fk = self._only(fk, plan.queries)
        several = isinstance(plan.mask, Causal) and q.shape[2] > 1  # then each sees a part of what arrives
        values = self._causal(fq, fk, v, None, held) if several else None
        held.add_(take(fk, self._beside_ones(v)))
        return self._only(self._mean(read(fq, held)) if values is None else values, plan.queries)

    def _ready(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features and values of one dtype: bfloat16 on a GPU has the range and is fast, no other half is both."""
        narrow = v.dtype == torch.bfloat16 and v.device.type == "cuda"
        dtype = v.dtype if narrow else torch.promote_types(v.dtype, torch.float32)
        return self.of_queries(q).to(dtype), self.of_keys(k).to(dtype), v.to(dtype)

    def _causal(
        self, fq: Tensor, fk: Tensor, v: Tensor, documents: Documents | None, before: Tensor | None = None
    ) -> Tensor:
        if fq.device.type == "cpu" and not torch.compiler.is_compiling():
            return rolled(fq, fk, v, documents, self.normalise, before)
        return self._mean(at_once(fq, fk, self._beside_ones(v), documents, before))

    def _beside_ones(self, v: Tensor) -> Tensor:
        """Values with columns of ones, whose sums are the denominators."""
        return F.pad(v, (0, ONES), value=1.0) if self.normalise else v

    def _mean(self, sums: Tensor) -> Tensor:
        if not self.normalise:
            return sums
        return sums[..., :-ONES] / sums[..., -ONES, None].clamp(min=floor(sums.dtype))

    def _only(self, x: Tensor, slots: AnySlots) -> Tensor:
        """Rows of empty slots become zero: [B, H, N, F]."""
        if isinstance(slots, Range):
            return x
        held = slots.filled() if isinstance(slots, Padded) else slots.segment > EMPTY
        return x.masked_fill(~held[:, None, :, None], 0)


def take(fk: Tensor, v: Tensor) -> Tensor:
    """Σ φ(k)ᵀ v: [B, G, N, F] and [B, G, N, E] to [B, G, F, E]."""
    return fk.mT @ v


def read(fq: Tensor, held: Tensor) -> Tensor:
    """φ(q)·held for the queries of each group of heads: [B, H, N, F] to [B, H, N, E]."""
    grouped = fq.unflatten(1, (held.shape[1], -1))  # [B, G, R, N, F]
    return (grouped.flatten(2, 3) @ held).unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def refuse(sizes: Sizes, name: str) -> None:
    """What has no meaning where there are no scores."""
    if sizes.bias is not None:
        raise UserError(
            f"{name} attention has no scores that {type(sizes.bias).__name__} positions could change; "
            "use --model.position rotary, or --model.attention softmax"
        )
    if sizes.dropout:
        raise UserError(
            f"{name} attention has no weights to drop: set --model.attention_dropout 0, or --model.attention softmax"
        )


@dataclass(frozen=True)
class LinearConfig(AttentionConfig, kind="linear"):
    """Linear attention: a state of constant size instead of all keys and values."""

    features: Literal["elu", "relu", "relu2", "softmax", "identity"] = option(
        "elu", "what queries and keys become before they are compared"
    )
    normalise: bool = option(True, "means of the values; false: sums, as the identity features need")

    def check(self) -> None:
        if self.features == "identity" and self.normalise:
            raise ValueError("identity features may be negative and make no shares; set normalise = false")

    def mechanism(self, sizes: Sizes) -> Mechanism:
        refuse(sizes, "linear")
        return LinearAttention(self.features, normalise=self.normalise)
