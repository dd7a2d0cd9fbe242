"""Multi-head self-attention: project, normalize, rotate, attend, project back (Vaswani et al. 2017, sec. 3.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import DecodeInput, Mechanism, Plan
from regard.config import Choice
from regard.nn.cross_attention import CrossAttention, SharedCrossAttention
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.position import NoRotation, Rotation


class AttentionContext(NamedTuple):
    """What all layers with the same mask share in one forward pass."""

    plan: Plan  # which keys each query sees, prepared for a backend
    rotation: Rotation  # of queries and keys, by their positions
    decode: DecodeInput | None = None  # while decoding: where this step's keys and values go in the KV cache


class SelfAttention(nn.Module):
    """Queries, keys and values from one product; ``kv_heads`` below ``heads`` is grouped-query attention."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        mechanism: Mechanism,
        *,
        bias: bool = False,
        qk_norm: bool = False,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        parts = self._parts()
        self.qkv = Linear(width, sum(parts), bias=bias)
        self.qkv.parts = parts
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: AttentionContext, cache: Any = None) -> Tensor:
        return self.out(self.mix(self.qkv(x), context, cache))

    def mix(self, qkv: Tensor, context: AttentionContext, cache: Any) -> Tensor:
        """Attention between the two projections: [B, N, (H + G + G) D] to [B, N, H D]."""
        heads = qkv.unflatten(-1, (-1, self.head_width))  # [B, N, H + G + G, D]
        q, k, v = self._split(heads, context.rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H or G, N, D]
        if cache is None:
            mixed = self.mechanism(q, k, v, context.plan)
        else:
            assert context.decode is not None  # a cache is given only while decoding
            mixed = self.mechanism.step(q, k, v, context.plan, cache, context.decode)
        return mixed.values.transpose(1, 2).flatten(2)  # [B, H, N, D] to [B, N, H D]

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end the residual branch, at initialization."""
        self.out.weight.mul_(scale)

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

    def start(self, batch: int, size: int) -> Any:
        """An empty KV cache for ``size`` tokens per row."""
        return self.mechanism.start(batch, self.kv_heads, size, self.head_width, self.out.weight)


class SharedSelfAttention(SelfAttention):
    """Q = K = V: one matrix instead of three. Without rotation every score matrix is symmetric."""

    def _parts(self) -> tuple[int, ...]:
        if self.heads != self.kv_heads:
            raise ValueError(
                f"a shared projection has as many key heads as query heads: {self.heads}, not {self.kv_heads}"
            )
        return (self.heads * self.head_width,)

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        both = rotation.apply(self.norm_qk(heads))
        return both, both, heads


class ProjectionConfig(Choice):
    """How a layer makes queries, keys and values."""

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        """Refuse impossible sizes with a ValueError that names the fix."""

    def head_width(self, width: int, heads: int) -> int:
        """The width of a query and of a key."""
        return width // heads

    def rotary_width(self, width: int, heads: int) -> int:
        """The width of the part of a query and of a key that positions rotate."""
        return width // heads

    def cache_width(self, width: int, heads: int, kv_heads: int) -> int:
        """How many numbers a layer caches per token."""
        return 2 * kv_heads * (width // heads)

    def build(
        self, width: int, heads: int, kv_heads: int, mechanism: Mechanism, *, bias: bool, qk_norm: bool
    ) -> SelfAttention:
        raise NotImplementedError

    def cross(
        self, width: int, heads: int, kv_heads: int, mechanism: Mechanism, *, bias: bool, qk_norm: bool
    ) -> CrossAttention:
        """Cross-attention with this projection. Default: separate matrices for queries, keys and values."""
        return CrossAttention(width, heads, kv_heads, mechanism, bias=bias, qk_norm=qk_norm)


@dataclass(frozen=True)
class SeparateConfig(ProjectionConfig, kind="separate"):
    """A matrix each for queries, keys and values."""

    def build(self, *sizes, **options) -> SelfAttention:
        return SelfAttention(*sizes, **options)


@dataclass(frozen=True)
class SharedConfig(ProjectionConfig, kind="shared"):
    """One matrix for all three."""

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        if heads != kv_heads:
            raise ValueError(f"a shared projection has as many key heads as query heads; set kv_heads = {heads}")

    def build(self, *sizes, **options) -> SelfAttention:
        return SharedSelfAttention(*sizes, **options)

    def cross(self, *sizes, **options) -> CrossAttention:
        return SharedCrossAttention(*sizes, **options)
