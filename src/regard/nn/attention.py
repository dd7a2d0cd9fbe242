"""Multi-head attention: project, normalize, rotate, attend, project back (Vaswani et al. 2017, sec. 3.2.2).

In cross-attention (sec. 3.2.3) queries come from one sequence, keys and values from another. While decoding, the other
sequence is projected once, and several rows of queries (the beams of a source) attend to one row of keys: the rows are
concatenated into one longer row of queries, and no key is copied.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import DecodeInput, KVCache, Mechanism, Out, Plan
from regard.config import Choice, option
from regard.errors import UserError
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.position import NoRotation, Rotation

Cache = tuple[Tensor, ...]  # a named tuple; most mechanisms have a ``KVCache``


class CrossAttentionContext(NamedTuple):
    """The other sequence as a decoder layer sees it."""

    plan: Plan  # beams*T queries over S keys; the same for all layers
    memory: Tensor | KVCache  # the encoder's output [B, S, C], or its keys and values [B, G, S, D], projected before


class AttentionContext(NamedTuple):
    """What attention needs besides its input. Layers with the same mask share the first three in a forward pass."""

    plan: Plan  # which keys each query sees, prepared for a backend
    rotation: Rotation  # of queries and keys, by their positions
    decode: DecodeInput | None = None  # while decoding: where this step's keys and values go in the KV cache
    cache: Cache | None = None  # while decoding: the layer's own KV cache
    cross: CrossAttentionContext | None = None  # for layers with cross-attention


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of a multi-head attention layer; ``kv_heads`` below ``heads`` is grouped-query attention."""

    width: int
    heads: int
    kv_heads: int
    bias: bool = False
    qk_norm: bool = False
    size: int | None = None  # width of a head, if it is not width / heads
    input_bias: bool | None = None  # of queries, keys and values, if it differs from that of ``out``

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.size or self.width // self.heads

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.bias if self.input_bias is None else self.input_bias


class QKNorm(nn.Module):
    """RMSNorm of queries and keys [B, N, H + G, D] with a gain for each of the two, as in Qwen 3."""

    def __init__(self, heads: int, kv_heads: int, head_width: int, eps: float):
        super().__init__()
        self.heads = [heads, kv_heads]
        self.q, self.k = RMSNorm(head_width, eps=eps), RMSNorm(head_width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        q, k = x.split(self.heads, dim=2)
        return torch.cat((self.q(q), self.k(k)), dim=2)


class SelfAttention(nn.Module):
    """Queries, keys and values from one product."""

    def __init__(self, sizes: AttentionSizes, mechanism: Mechanism):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = sizes.heads, sizes.kv_heads, sizes.head_width
        self.qkv = Linear(sizes.width, *self._parts(), bias=sizes.qkv_bias)
        self.norm_qk: nn.Module = RMSNorm(self.head_width) if sizes.qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(self.heads * self.head_width, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.out(self.mix(self.qkv(x), context))

    def mix(self, qkv: Tensor, context: AttentionContext) -> Tensor:
        """Attention between the two projections: [B, N, (H + G + G) D] to [B, N, H D]."""
        heads = qkv.unflatten(-1, (-1, self.head_width))  # [B, N, H + G + G, D]
        q, k, v = self._split(heads, context.rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H or G, N, D]
        return self._attend(q, k, v, context).transpose(1, 2).flatten(2)  # [B, H, N, D] to [B, N, H D]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """The mechanism over the tokens of a whole sequence or, while decoding, over those of a step."""
        if context.decode is None:
            return values(self.mechanism, self.mechanism(q, k, v, context.plan))
        return values(self.mechanism, self.mechanism.step(q, k, v, context.plan, context.cache, context.decode))

    def _parts(self) -> tuple[int, ...]:
        """The row counts of the matrices stacked in ``qkv``."""
        return tuple(n * self.head_width for n in (self.heads, self.kv_heads, self.kv_heads))

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        """Queries and keys are adjacent, so they are normalized (Henry et al. 2020) and rotated together."""
        if isinstance(rotation, NoRotation) and isinstance(self.norm_qk, nn.Identity):
            return heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)  # one split less in the backward pass
        both, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = rotation.apply(self.norm_qk(both)).split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def start(self, batch: int, size: int) -> Cache:
        """An empty KV cache for ``size`` tokens per row."""
        return self.mechanism.start(batch, self.kv_heads, size, self.head_width, self.out.weight)


def values(mechanism: Mechanism, out: Out) -> Tensor:
    """The values of a mechanism's result; one from outside the package may have returned something else."""
    if not isinstance(out, Out):
        raise UserError(
            f"the mechanism {type(mechanism).__name__} returned a {type(out).__name__}; "
            "return regard.attention.Out(values)"
        )
    return out.values


def _check_equal(heads: int, kv_heads: int) -> None:
    if heads != kv_heads:
        raise ValueError(f"a shared projection has as many key heads as query heads: {heads}, not {kv_heads}")


class SharedSelfAttention(SelfAttention):
    """Q = K = V: one matrix instead of three. Without rotation every score matrix is symmetric."""

    def _parts(self) -> tuple[int, ...]:
        _check_equal(self.heads, self.kv_heads)
        return (self.heads * self.head_width,)

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        both = rotation.apply(self.norm_qk(heads))
        return both, both, heads


class SharedQKSelfAttention(SelfAttention):
    """Keys are the queries divided by their length (Kitaev et al. 2020, sec. 2); values have their own matrix."""

    def _parts(self) -> tuple[int, ...]:
        _check_equal(self.heads, self.kv_heads)
        return (self.heads * self.head_width,) * 2

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        q, v = heads.split(self.heads, dim=2)
        q = rotation.apply(self.norm_qk(q))
        return q, F.normalize(q, dim=-1), v


class CrossAttention(nn.Module):
    """Queries from x, keys and values from a memory. No rotation: the two sequences have separate positions."""

    def __init__(self, sizes: AttentionSizes, mechanism: Mechanism):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = sizes.heads, sizes.kv_heads, sizes.head_width
        self.norm_qk = RMSNorm(self.head_width) if sizes.qk_norm else nn.Identity()
        self.mechanism = mechanism
        self._project(sizes.width, sizes.qkv_bias)
        self.out = Linear(self.heads * self.head_width, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor, context: CrossAttentionContext | None) -> Tensor:
        """x [B*beams, T, C], with the beams of each row of the memory adjacent."""
        if context is None:
            raise ValueError("cross-attention needs a memory, or its projected keys and values")
        k, v = context.memory if isinstance(context.memory, KVCache) else self.project(context.memory)
        q = self.norm_qk(self._queries(x).view(k.shape[0], -1, self.heads, self.head_width))  # [B, beams*T, H, D]
        mixed = values(self.mechanism, self.mechanism(q.transpose(1, 2), k, v, context.plan))  # [B, H, beams*T, D]
        return self.out(mixed.transpose(1, 2).reshape(*x.shape[:-1], -1))

    def project(self, memory: Tensor) -> KVCache:
        """Keys and values [B, G, S, D] of a memory [B, S, C]."""
        k, v = self._keys_values(memory)
        return KVCache(self.norm_qk(k).transpose(1, 2), v.transpose(1, 2))

    def _project(self, width: int, bias: bool) -> None:
        self.q = Linear(width, self.heads * self.head_width, bias=bias)
        part = self.kv_heads * self.head_width
        self.kv = Linear(width, part, part, bias=bias)

    def _queries(self, x: Tensor) -> Tensor:
        return self.q(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:  # [B, S, G, D] each
        return self.kv(memory).unflatten(-1, (2 * self.kv_heads, self.head_width)).split(self.kv_heads, dim=2)


class SharedCrossAttention(CrossAttention):
    """Q = K = V: one matrix projects both sequences."""

    def _project(self, width: int, bias: bool) -> None:
        self.qkv = Linear(width, self.heads * self.head_width, bias=bias)

    def _queries(self, x: Tensor) -> Tensor:
        return self.qkv(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        both = self.qkv(memory).unflatten(-1, (self.heads, self.head_width))
        return both, both


class ProjectionConfig(Choice):
    """How a layer makes queries, keys and values."""

    self_attention: ClassVar[type[SelfAttention]] = SelfAttention
    cross_attention: ClassVar[type[CrossAttention]] = CrossAttention
    size: int | None = None  # width of a head, if it is not width / heads

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        """Refuse impossible sizes with a ValueError that names the fix."""

    def head_width(self, width: int, heads: int) -> int:
        """The width of a query and of a key."""
        return self.size or width // heads

    def rotary_width(self, width: int, heads: int) -> int:
        """The width of the part of a query and of a key that positions rotate."""
        return self.size or width // heads

    def cache_width(self, width: int, heads: int, kv_heads: int) -> int:
        """How many numbers a layer caches per token."""
        return 2 * kv_heads * (self.size or width // heads)

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> SelfAttention:
        return self.self_attention(sizes, mechanism)

    def build_cross(self, sizes: AttentionSizes, mechanism: Mechanism) -> CrossAttention:
        return self.cross_attention(sizes, mechanism)


@dataclass(frozen=True)
class SeparateConfig(ProjectionConfig, kind="separate"):
    """A matrix each for queries, keys and values."""

    size: int | None = option(None, "width of a head (default: width / heads)", least=1)
    bias: bool | None = option(None, "biases of queries, keys and values, if they differ from the model's")
    norms: Literal["shared", "separate"] = option("shared", "with qk_norm: one gain for queries and keys, or one each")
    eps: float = option(1e-6, "with qk_norm: added to the mean square")

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> SelfAttention:
        made = SelfAttention(self._own(sizes), mechanism)
        if sizes.qk_norm:
            separate = self.norms == "separate"
            size = made.head_width
            norm = QKNorm(sizes.heads, sizes.kv_heads, size, self.eps) if separate else RMSNorm(size, eps=self.eps)
            made.norm_qk = norm
        return made

    def build_cross(self, sizes: AttentionSizes, mechanism: Mechanism) -> CrossAttention:
        return CrossAttention(self._own(sizes), mechanism)

    def _own(self, sizes: AttentionSizes) -> AttentionSizes:
        return replace(sizes, size=self.size, input_bias=self.bias)


@dataclass(frozen=True)
class SharedConfig(ProjectionConfig, kind="shared"):
    """One matrix for all three."""

    self_attention, cross_attention = SharedSelfAttention, SharedCrossAttention

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        if heads != kv_heads:
            raise ValueError(f"a shared projection has as many key heads as query heads; set kv_heads = {heads}")


@dataclass(frozen=True)
class SharedQKConfig(SharedConfig, kind="shared_qk"):
    """One matrix for queries and keys, which are normalized queries, as in Reformer; cross-attention has three."""

    self_attention, cross_attention = SharedQKSelfAttention, CrossAttention
