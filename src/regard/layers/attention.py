"""Multi-head self-attention: project, normalise, turn, attend, project back (Vaswani et al. 2017, sec. 3.2.2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from regard.attend import KeyValues, Landing, Plan, Softmax
from regard.layers.norm import RMSNorm
from regard.layers.position import Turn


class Scene(NamedTuple):
    """What every layer with the same mask shares in one forward pass: who sees whom, and how positions turn."""

    plan: Plan
    turn: Turn
    landing: Landing | None = None  # while decoding: where this step's keys and values go
    used: int = 0  # while decoding: how many places of the memory hold something


class SelfAttention(nn.Module):
    """Queries, keys and values from one product; ``kv_heads`` below ``heads`` is grouped-query attention."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        mechanism: Softmax,
        *,
        bias: bool = False,
        qk_norm: bool = False,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=bias)
        self.norm_q = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.norm_k = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, -1, self.head_width)
            .split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        )  # each [B, N, H or G, D]
        q, k, v = self.norm_q(q).transpose(1, 2), self.norm_k(k).transpose(1, 2), v.transpose(1, 2)
        q, k = scene.turn.apply(q), scene.turn.apply(k)
        if memory is not None and scene.landing is not None:
            k, v = memory.take(scene.landing, k, v, scene.used)
        mixed = self.mechanism(q, k, v, scene.plan).values  # [B, H, N, D]
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def start(self, batch: int, size: int) -> KeyValues:
        """An empty memory of ``size`` places."""
        return KeyValues.start(batch, self.kv_heads, size, self.head_width, self.out.weight)
