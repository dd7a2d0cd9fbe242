"""Multi-head self-attention: project, normalise, turn, attend, project back (Vaswani et al. 2017, sec. 3.2.2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from regard.attend import KeyValues, Landing, Plan, Softmax
from regard.layers.linear import Linear
from regard.layers.norm import RMSNorm
from regard.layers.position import Still, Turn


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
        self.qkv = Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=bias)
        self.qkv.parts = tuple(n * self.head_width for n in (heads, kv_heads, kv_heads))  # Muon treats them apart
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.head_width)  # [B, N, H + G + G, D]
        q, k, v = self._split(heads, scene.turn)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H or G, N, D]
        if memory is not None and scene.landing is not None:
            k, v = memory.take(scene.landing, k, v, scene.used)
        mixed = self.mechanism(q, k, v, scene.plan).values  # [B, H, N, D]
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _split(self, heads: Tensor, turn: Turn) -> tuple[Tensor, ...]:
        """Queries and keys lie side by side, so they are normalised (Henry et al. 2020) and turned in one go."""
        if isinstance(turn, Still) and isinstance(self.norm_qk, nn.Identity):
            return heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)  # one cut less in the backward pass
        both, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = turn.apply(self.norm_qk(both)).split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def start(self, batch: int, size: int) -> KeyValues:
        """An empty memory of ``size`` places."""
        return KeyValues.start(batch, self.kv_heads, size, self.head_width, self.out.weight)
