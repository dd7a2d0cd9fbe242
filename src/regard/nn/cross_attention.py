"""Cross-attention: queries from one sequence, keys and values from another (Vaswani et al. 2017, sec. 3.2.3).

While decoding, the other sequence is projected once, and several rows of queries (the beams of a source) attend to one
row of keys: the rows are concatenated into one longer row of queries, and no key is copied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Mechanism, Plan
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm


class CrossAttentionContext(NamedTuple):
    """The other sequence as a decoder layer sees it: the encoder's output, or its keys and values, projected before."""

    plan: Plan  # beams*T queries over S keys; the same for all layers
    memory: Tensor | None = None  # [B, S, C]
    projected: KVCache | None = None  # [B, G, S, D] each


class CrossAttention(nn.Module):
    """Queries from x, keys and values from a memory. No rotation: the two sequences have separate positions."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, mechanism: Mechanism, *, bias: bool = False, qk_norm: bool = False
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self._project(width, bias)
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, cross_context: CrossAttentionContext) -> Tensor:
        """x [B*beams, T, C], with the beams of each row of the memory adjacent."""
        k, v = self.project(cross_context.memory) if cross_context.projected is None else cross_context.projected
        q = self.norm_qk(self._queries(x).view(k.shape[0], -1, self.heads, self.head_width))  # [B, beams*T, H, D]
        mixed = self.mechanism(q.transpose(1, 2), k, v, cross_context.plan).values  # [B, H, beams*T, D]
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def project(self, memory: Tensor | None) -> KVCache:
        """Keys and values [B, G, S, D] of a memory [B, S, C]."""
        if memory is None:
            raise ValueError("cross-attention needs a memory, or its projected keys and values")
        k, v = self._keys_values(memory)
        return KVCache(self.norm_qk(k).transpose(1, 2), v.transpose(1, 2))

    @torch.no_grad()
    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end the residual branch, at initialization."""
        self.out.weight.mul_(scale)

    def _project(self, width: int, bias: bool) -> None:
        self.q = Linear(width, width, bias=bias)
        part = self.kv_heads * self.head_width
        self.kv = Linear(width, 2 * part, bias=bias)
        self.kv.parts = (part, part)

    def _queries(self, x: Tensor) -> Tensor:
        return self.q(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:  # [B, S, G, D] each
        return self.kv(memory).unflatten(-1, (2 * self.kv_heads, self.head_width)).split(self.kv_heads, dim=2)


class SharedCrossAttention(CrossAttention):
    """Q = K = V: one matrix projects both sequences."""

    def _project(self, width: int, bias: bool) -> None:
        self.qkv = Linear(width, width, bias=bias)

    def _queries(self, x: Tensor) -> Tensor:
        return self.qkv(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        both = self.qkv(memory).unflatten(-1, (self.heads, self.head_width))
        return both, both
