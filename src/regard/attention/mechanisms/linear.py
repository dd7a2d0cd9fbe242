"""Linear attention: similarities that factor, so that the past is one sum of constant size (Katharopoulos et al. 2020).

    out_i = φ(q_i)·Σ_j φ(k_j)ᵀ v_j  /  φ(q_i)·Σ_j φ(k_j)          (their eqs. 5 and 9)

The similarity of a query and a key is φ(q)·φ(k) instead of exp(q·k). All feature maps φ but ``identity`` are
nonnegative, so that the similarities can be normalized to weights. Three forms of the same function: every pair
(``definition``; quadratic), chunks (``chunked.py``; for training), and a recurrent state that is updated token by token
(``step``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.cache import DecodeInput
from regard.attention.call import Out, Plan, SavedTensors, allowed, dense_pairs, repeat_kv
from regard.attention.masks.mask import Full, Mask
from regard.attention.masks.patterns import Causal
from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism
from regard.attention.mechanisms.chunked import ONES, ChunkByChunk, Documents, at_once, floor, with_ones
from regard.attention.slots import EMPTY, AnySlots, Packed, Padded, Range, Slots
from regard.config import option
from regard.errors import UserError

FeatureName = Literal["elu", "relu", "relu2", "softmax", "identity"]


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 (Katharopoulos et al. 2020, eq. 7), as exp(min(x, 0)) + max(x, 0).

    This form keeps the digits of small values: elu(-20) + 1 is zero in float32, exp(-20) is not.
    """
    return x.clamp(max=0).exp() + F.relu(x) if torch.compiler.is_compiling() else _EluPlusOne.apply(x)


class _EluPlusOne(Function):
    """The derivative is min(φ, 1): the backward pass needs the output only."""

    @staticmethod
    def forward(ctx: SavedTensors, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(F.relu(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedTensors, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y.clamp(max=1).mul_(grad)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²: sharper than max(x, 0)."""
    return F.relu(x).square()


def softmax(x: Tensor) -> Tensor:
    """Softmax over the features (Shen et al. 2021, sec. 3.2): never overflows, never all zero."""
    return x.softmax(-1)


def identity(x: Tensor) -> Tensor:
    """q·k itself, which may be negative and therefore cannot be normalized."""
    return x


FEATURES: dict[FeatureName, Callable[[Tensor], Tensor]] = {
    "elu": elu_plus_one,
    "relu": F.relu,
    "relu2": relu_squared,
    "softmax": softmax,
    "identity": identity,
}


class LinearState(NamedTuple):
    """The state of linear attention, of constant size: Σ φ(k)ᵀ [v, 1], in float32 at least."""

    sums: Tensor  # [B, G, F, E + ones]


class LinearAttention(Mechanism):
    """The mean of the values with weights φ(q)·φ(k), in linear time. Another function than softmax attention.

    Without ``normalize`` the sum instead of the mean, which the ``identity`` features need: they may be negative.
    A row whose similarities are all zero is zero, like one that sees nothing.
    """

    def __init__(self, features: FeatureName = "elu", *, normalize: bool = True):
        super().__init__()
        self.features: FeatureName = features
        self.normalize = normalize
        self.ones = ONES if normalize else 0  # columns beside the values

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
        causal = isinstance(mask, Causal)
        ways = (False,) if causal else (False, True)
        documents = tuple(Documents.of(queries.segment, causal=causal, backwards=way) for way in ways)
        return plan._replace(prepared=documents)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        plain = isinstance(plan.queries, Range | Padded) and isinstance(plan.keys, Range | Padded)
        with torch.autocast(q.device.type, enabled=False):  # sums have their own dtype
            fq, fk, fv = self._ready(q, k, v)
            if plan.same_tokens and isinstance(plan.mask, Causal) and not isinstance(plan.queries, Slots):
                values = self._causal(fq, fk, fv, plan.prepared[0] if plan.prepared else None)
            elif plan.same_tokens and plan.prepared:
                there, back = plan.prepared
                values = self._mean(at_once(fq, fk, with_ones(fv, self.ones), there, after=back))
            elif plain and isinstance(plan.mask, Full):
                values = self._mean(read(fq, self._only(fk, plan.keys).mT @ with_ones(fv, self.ones)))
            else:  # arbitrary slots: no running sum
                values = self.definition(fq, fk, fv, plan)
            return Out(self._only(values, plan.queries).to(v.dtype))

    def definition(self, fq: Tensor, fk: Tensor, v: Tensor, plan: Plan) -> Tensor:
        """Every pair: Σ_j φ(q_i)·φ(k_j) v_j over the keys that the mask allows, divided by Σ_j φ(q_i)·φ(k_j)."""
        return self._mean(self._similarities(fq, fk, plan) @ with_ones(repeat_kv(v, fq.shape[1]), self.ones))

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        fq, fk, _ = self._ready(q, k, k)
        weights = self._similarities(fq, fk, plan)
        return weights / weights.sum(-1, keepdim=True).clamp(min=floor(fq.dtype)) if self.normalize else weights

    def _similarities(self, fq: Tensor, fk: Tensor, plan: Plan) -> Tensor:
        """φ(q_i)·φ(k_j) of the pairs that the mask allows, else 0: [B, H, Q, K]."""
        return (fq @ repeat_kv(fk, fq.shape[1]).mT) * allowed(plan.mask, dense_pairs(plan, fq))

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> LinearState:
        shape = (batch, heads, self.feature_count(width), width + self.ones)
        return LinearState(like.new_zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32)))

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, cache: LinearState, decode: DecodeInput) -> Out:
        sums = cache.sums
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, fv = (x.to(sums.dtype) for x in (self.of_queries(q), self.of_keys(k), v))
            fk = self._only(fk, plan.queries)
            several = isinstance(plan.mask, Causal) and q.shape[2] > 1  # then each token sees some of the others
            values = self._causal(fq, fk, fv, None, sums) if several else None
            sums.add_(fk.mT @ with_ones(fv, self.ones))
            values = self._mean(read(fq, sums)) if values is None else values
            return Out(self._only(values, plan.queries).to(v.dtype))

    def _ready(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features and values of one dtype: bfloat16 on a GPU, where it is fast and has the range, else float32."""
        narrow = v.dtype == torch.bfloat16 and v.device.type == "cuda"
        dtype = v.dtype if narrow else torch.promote_types(v.dtype, torch.float32)
        return self.of_queries(q).to(dtype), self.of_keys(k).to(dtype), v.to(dtype)

    def _causal(
        self, fq: Tensor, fk: Tensor, v: Tensor, documents: Documents | None, before: Tensor | None = None
    ) -> Tensor:
        if fq.device.type == "cpu" and not torch.compiler.is_compiling():
            return ChunkByChunk.apply(fq, fk, v, documents, self.ones, before)
        return self._mean(at_once(fq, fk, with_ones(v, self.ones), documents, before))

    def _mean(self, sums: Tensor) -> Tensor:
        return sums[..., :-ONES] / sums[..., -ONES, None].clamp(min=floor(sums.dtype)) if self.normalize else sums

    def _only(self, x: Tensor, slots: AnySlots) -> Tensor:
        """Rows of empty slots set to zero: [B, H, N, F]."""
        if isinstance(slots, Range):
            return x
        filled = slots.filled() if isinstance(slots, Padded) else slots.segment > EMPTY
        return x.masked_fill(~filled[:, None, :, None], 0)


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

    features: FeatureName = option("elu", "feature map of queries and keys")
    normalize: bool = option(True, "means of the values; false: sums, as the identity features need")

    def check(self) -> None:
        super().check()
        if self.features == "identity" and self.normalize:
            raise ValueError("identity features may be negative and cannot be normalized; set normalize = false")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        refuse(spec, "linear")
        return LinearAttention(self.features, normalize=self.normalize)
