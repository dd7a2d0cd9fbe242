"""Multi-head self-attention: project, normalise, turn, attend, project back (Vaswani et al. 2017, sec. 3.2.2)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from regard.attend import KeyValues, Landing, Plan, Softmax
from regard.layers.linear import Linear
from regard.layers.norm import RMSNorm
from regard.layers.position import Still, Turn

Projection = Literal["separate", "shared"]  # queries, keys and values each with a matrix of their own, or all with one


class Scene(NamedTuple):
    """What every layer with the same mask shares in one forward pass: who sees whom, and how positions turn."""

    plan: Plan
    turn: Turn
    landing: Landing | None = None  # while decoding: where this step's keys and values go; none: behind the others'
    used: int = 0  # while decoding: how many places of the memory hold something

    def remember(self, memory: KeyValues, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, G, T, D]; give back those to attend to."""
        if self.landing is not None:
            return memory.take(self.landing, k, v, self.used)
        place = slice(self.used - k.shape[2], self.used)  # every row holds equally many: a copy will do, not a scatter
        memory.k[:, :, place], memory.v[:, :, place] = k, v
        return memory.k[:, :, : self.used], memory.v[:, :, : self.used]


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
        parts = self._parts()
        self.qkv = Linear(width, sum(parts), bias=bias)
        self.qkv.parts = parts  # Muon treats them apart
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, scene: Scene, memory: KeyValues | None = None) -> Tensor:
        return self.out(self.mix(self.qkv(x), scene, memory))

    def mix(self, qkv: Tensor, scene: Scene, memory: KeyValues | None) -> Tensor:
        """What is between the two products: [B, N, (H + G + G) D] to [B, N, H D]."""
        heads = qkv.unflatten(-1, (-1, self.head_width))  # [B, N, H + G + G, D]
        q, k, v = self._split(heads, scene.turn)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H or G, N, D]
        if memory is not None:
            k, v = scene.remember(memory, k, v)
        mixed = self.mechanism(q, k, v, scene.plan).values  # [B, H, N, D]
        return mixed.transpose(1, 2).flatten(2)

    def _parts(self) -> tuple[int, ...]:
        """The rows of the matrices that lie one below the other in ``qkv``."""
        return tuple(n * self.head_width for n in (self.heads, self.kv_heads, self.kv_heads))

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


class SharedSelfAttention(SelfAttention):
    """Q = K = V: one matrix in the place of three. Without turned positions every score matrix is symmetric."""

    def _parts(self) -> tuple[int, ...]:
        if self.heads != self.kv_heads:
            raise ValueError(f"one projection for all makes {self.heads} heads of keys too, not {self.kv_heads}")
        return (self.heads * self.head_width,)

    def _split(self, heads: Tensor, turn: Turn) -> tuple[Tensor, ...]:
        both = turn.apply(self.norm_qk(heads))
        return both, both, heads


SELF_ATTENTION: dict[Projection, type[SelfAttention]] = {"separate": SelfAttention, "shared": SharedSelfAttention}
