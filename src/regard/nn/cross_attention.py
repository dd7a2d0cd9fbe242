"""Cross-attention: queries from one sequence, keys and values from another's memory (Vaswani et al. 2017, sec. 3.2.3).

While decoding, the memory is projected once, and several rows of queries (the beams of a sentence) may read one row of
it: they are laid end to end as more queries, and nothing of the memory is copied.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from regard.attention import KVCache, Plan, Softmax
from regard.nn.attention import Projection
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm


class CrossAttentionContext(NamedTuple):
    """What a decoder layer sees of the other sequence: its memory, or what the layer made of that before."""

    plan: Plan  # beams*T queries over S keys; the same for all layers
    memory: Tensor | None = None  # [B, S, C]
    projected: KVCache | None = None  # [B, H, S, D] each


class CrossAttention(nn.Module):
    """Queries from x, keys and values from a memory. Positions do not turn here: the two sequences count apart."""

    def __init__(self, width: int, heads: int, mechanism: Softmax, *, bias: bool = False, qk_norm: bool = False):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self._project(width, bias)
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, cross_context: CrossAttentionContext) -> Tensor:
        """x [B*beams, T, C], with the beams of a row of the memory side by side."""
        k, v = self.project(cross_context.memory) if cross_context.projected is None else cross_context.projected
        q = self.norm_qk(self._queries(x).view(k.shape[0], -1, self.heads, self.head_width))  # [B, beams*T, H, D]
        mixed = self.mechanism(q.transpose(1, 2), k, v, cross_context.plan).values  # [B, H, beams*T, D]
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def project(self, memory: Tensor | None) -> KVCache:
        """Keys and values [B, H, S, D] of a memory [B, S, C]."""
        if memory is None:
            raise ValueError("cross-attention needs a memory to look at, or its projection")
        k, v = self._keys_values(memory)
        return KVCache(self.norm_qk(k).transpose(1, 2), v.transpose(1, 2))

    def _project(self, width: int, bias: bool) -> None:
        self.q = Linear(width, width, bias=bias)
        self.kv = Linear(width, 2 * width, bias=bias)
        self.kv.parts = (width, width)  # Muon treats them apart

    def _queries(self, x: Tensor) -> Tensor:
        return self.q(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:  # [B, S, H, D] each
        return self.kv(memory).view(*memory.shape[:2], 2 * self.heads, self.head_width).split(self.heads, dim=2)


class SharedCrossAttention(CrossAttention):
    """Q = K = V: one matrix projects queries and memory alike."""

    def _project(self, width: int, bias: bool) -> None:
        self.qkv = Linear(width, width, bias=bias)

    def _queries(self, x: Tensor) -> Tensor:
        return self.qkv(x)

    def _keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        both = self.qkv(memory).view(*memory.shape[:2], self.heads, self.head_width)
        return both, both


CROSS_ATTENTION: dict[Projection, type[CrossAttention]] = {"separate": CrossAttention, "shared": SharedCrossAttention}
