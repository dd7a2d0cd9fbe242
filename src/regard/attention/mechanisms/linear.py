"""Linear attention: similarities that factor, so that the past is one sum of constant size (Katharopoulos et al. 2020).

    out_i = φ(q_i)·Σ_j φ(k_j)ᵀ v_j  /  φ(q_i)·Σ_j φ(k_j)          (their eqs. 5 and 9)

Three forms of the same function: every pair (``definition``; quadratic), chunks (``chunked.py``, ``chunked_cpu.py``;
for training), and a recurrent state that is updated token by token (``step``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.attention_config import AttentionConfig, LayerSpec
from regard.attention.cache import DecodeInput
from regard.attention.call import Out, Plan, allowed, dense_pairs
from regard.attention.masks.mask import Full, Mask
from regard.attention.masks.patterns import Causal
from regard.attention.mechanism import Mechanism
from regard.attention.mechanisms.chunked import Documents, at_once, both_ways
from regard.attention.mechanisms.chunked_cpu import ONES, chunk_by_chunk, floor
from regard.attention.mechanisms.features import FEATURES, FeatureName
from regard.attention.slots import EMPTY, AnySlots, Packed, Padded, Range, Slots
from regard.attention.weigh import repeat_kv
from regard.config import option
from regard.errors import UserError


class LinearState(NamedTuple):
    """The state of linear attention, of constant size: Σ φ(k)ᵀ [v, 1], in float32 at least."""

    sums: Tensor  # [B, G, F, E + ones]


class LinearAttention(Mechanism):
    """The mean of the values with weights φ(q)·φ(k), in linear time. Another function than softmax attention.

    Without ``normalize`` the sum instead of the mean, which the ``identity`` features need: they may be negative.
    A row whose similarities are all zero is zero, like one that sees nothing.
    """

    exact = False

    def __init__(self, features: FeatureName = "elu", *, normalize: bool = True):
        super().__init__()
        self.features: FeatureName = features
        self.normalize = normalize

    def of_queries(self, q: Tensor) -> Tensor:
        """φ(q): [..., D] to [..., F]."""
        return FEATURES[self.features](q)

    def of_keys(self, k: Tensor) -> Tensor:
        """φ(k): [..., D] to [..., F]. Of each key alone: a dependence on other keys would leak the future."""
        return FEATURES[self.features](k)

    def feature_count(self, width: int) -> int:
        return width

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if type(mask) not in (Full, Causal):
            raise UserError(
                f"linear attention keeps one sum over all earlier tokens and cannot exclude some of them, as {mask} "
                "does; use a causal or full mask, or --model.attention softmax"
            )
        plan = super().plan(mask, queries, keys, like=like)
        queries = plan.queries
        if keys is not None or not isinstance(queries, Packed):
            return plan
        if isinstance(mask, Causal):
            return plan._replace(prepared=(Documents.of(queries.segment, causal=True),))
        both = [Documents.of(queries.segment, causal=False, backwards=way) for way in (False, True)]
        return plan._replace(prepared=tuple(both))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        with torch.autocast(q.device.type, enabled=False):  # sums have their own dtype
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
        else:  # arbitrary slots: no running sum
            values = self.definition(fq, fk, v, plan)
        return self._only(values, plan.queries)

    def definition(self, fq: Tensor, fk: Tensor, v: Tensor, plan: Plan) -> Tensor:
        """Every pair: Σ_j φ(q_i)·φ(k_j) v_j over the keys that the mask allows, divided by Σ_j φ(q_i)·φ(k_j)."""
        return self._mean(self._similarities(fq, fk, plan) @ self._beside_ones(repeat_kv(v, fq.shape[1])))

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        fq, fk, _ = self._ready(q, k, k)
        weights = self._similarities(fq, fk, plan)
        return weights / weights.sum(-1, keepdim=True).clamp(min=floor(fq.dtype)) if self.normalize else weights

    def _similarities(self, fq: Tensor, fk: Tensor, plan: Plan) -> Tensor:
        """φ(q_i)·φ(k_j) of the pairs that the mask allows, else 0: [B, H, Q, K]."""
        return (fq @ repeat_kv(fk, fq.shape[1]).mT) * allowed(plan.mask, dense_pairs(plan, fq))

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> LinearState:
        shape = (batch, heads, self.feature_count(width), width + (ONES if self.normalize else 0))
        return LinearState(like.new_zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32)))

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, cache: LinearState, decode: DecodeInput) -> Out:
        with torch.autocast(q.device.type, enabled=False):
            return Out(self._stepped(q, k, v, plan, cache.sums).to(v.dtype), None)

    def _stepped(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, sums: Tensor) -> Tensor:
        fq, fk, v = (x.to(sums.dtype) for x in (self.of_queries(q), self.of_keys(k), v))
        fk = self._only(fk, plan.queries)
        several = isinstance(plan.mask, Causal) and q.shape[2] > 1  # then each token sees some of the others
        values = self._causal(fq, fk, v, None, sums) if several else None
        sums.add_(take(fk, self._beside_ones(v)))
        return self._only(self._mean(read(fq, sums)) if values is None else values, plan.queries)

    def _ready(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features and values of one dtype: bfloat16 on a GPU, where it is fast and has the range, else float32."""
        narrow = v.dtype == torch.bfloat16 and v.device.type == "cuda"
        dtype = v.dtype if narrow else torch.promote_types(v.dtype, torch.float32)
        return self.of_queries(q).to(dtype), self.of_keys(k).to(dtype), v.to(dtype)

    def _causal(
        self, fq: Tensor, fk: Tensor, v: Tensor, documents: Documents | None, before: Tensor | None = None
    ) -> Tensor:
        if fq.device.type == "cpu" and not torch.compiler.is_compiling():
            return chunk_by_chunk(fq, fk, v, documents, self.normalize, before)
        return self._mean(at_once(fq, fk, self._beside_ones(v), documents, before))

    def _beside_ones(self, v: Tensor) -> Tensor:
        """Values with columns of ones, whose sums are the denominators."""
        return F.pad(v, (0, ONES), value=1.0) if self.normalize else v

    def _mean(self, sums: Tensor) -> Tensor:
        if not self.normalize:
            return sums
        return sums[..., :-ONES] / sums[..., -ONES, None].clamp(min=floor(sums.dtype))

    def _only(self, x: Tensor, slots: AnySlots) -> Tensor:
        """Rows of empty slots set to zero: [B, H, N, F]."""
        if isinstance(slots, Range):
            return x
        sums = slots.filled() if isinstance(slots, Padded) else slots.segment > EMPTY
        return x.masked_fill(~sums[:, None, :, None], 0)


def take(fk: Tensor, v: Tensor) -> Tensor:
    """Σ φ(k)ᵀ v: [B, G, N, F] and [B, G, N, E] to [B, G, F, E]."""
    return fk.mT @ v


def read(fq: Tensor, sums: Tensor) -> Tensor:
    """φ(q)·sums for the queries of each group of heads: [B, H, N, F] to [B, H, N, E]."""
    grouped = fq.unflatten(1, (sums.shape[1], -1))  # [B, G, R, N, F]
    return (grouped.flatten(2, 3) @ sums).unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def refuse(spec: LayerSpec, name: str) -> None:
    """Refuse a position bias and dropout, which act on scores and weights."""
    if spec.bias is not None:
        raise UserError(
            f"{name} attention has no scores that {type(spec.bias).__name__} positions could change; "
            "use --model.position rotary, or --model.attention softmax"
        )
    if spec.dropout:
        raise UserError(
            f"{name} attention has no weights to drop; set --model.attention_dropout 0, or --model.attention softmax"
        )


@dataclass(frozen=True)
class LinearConfig(AttentionConfig, kind="linear"):
    """Linear attention: a state of constant size instead of all keys and values."""

    features: Literal["elu", "relu", "relu2", "softmax", "identity"] = option("elu", "feature map of queries and keys")
    normalize: bool = option(True, "means of the values; false: sums, as the identity features need")

    def check(self) -> None:
        if self.features == "identity" and self.normalize:
            raise ValueError("identity features may be negative and cannot be normalized; set normalize = false")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        refuse(spec, "linear")
        return LinearAttention(self.features, normalize=self.normalize)
