"""Multi-head self-attention: project, normalise, turn, attend, project back (Vaswani et al. 2017, sec. 3.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from regard.attention import DecodeInput, Mechanism, Plan
from regard.config import Choice
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.position import NoRotation, Rotation

Projection = Literal["separate", "shared"]  # queries, keys and values each with a matrix of their own, or all with one


class AttentionContext(NamedTuple):
    """What every layer with the same mask shares in one forward pass: who sees whom, and how positions turn."""

    plan: Plan
    turn: Rotation
    arrival: DecodeInput | None = None  # while decoding: how this step's tokens get into what a layer remembers


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
        self.qkv.parts = parts  # Muon treats them apart
        self.norm_qk = RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: AttentionContext, memory: Any = None) -> Tensor:
        return self.out(self.mix(self.qkv(x), context, memory))

    def mix(self, qkv: Tensor, context: AttentionContext, memory: Any) -> Tensor:
        """What is between the two products: [B, N, (H + G + G) D] to [B, N, H D]."""
        heads = qkv.unflatten(-1, (-1, self.head_width))  # [B, N, H + G + G, D]
        q, k, v = self._split(heads, context.turn)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H or G, N, D]
        if memory is None:
            mixed = self.mechanism(q, k, v, context.plan)
        else:
            assert context.arrival is not None  # whoever brings a memory decodes
            mixed = self.mechanism.step(q, k, v, context.plan, memory, context.arrival)
        return mixed.values.transpose(1, 2).flatten(2)  # [B, H, N, D] to [B, N, H D]

    def _parts(self) -> tuple[int, ...]:
        """The rows of the matrices that lie one below the other in ``qkv``."""
        return tuple(n * self.head_width for n in (self.heads, self.kv_heads, self.kv_heads))

    def _split(self, heads: Tensor, turn: Rotation) -> tuple[Tensor, ...]:
        """Queries and keys lie side by side, so they are normalised (Henry et al. 2020) and turned in one go."""
        if isinstance(turn, NoRotation) and isinstance(self.norm_qk, nn.Identity):
            return heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)  # one cut less in the backward pass
        both, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = turn.apply(self.norm_qk(both)).split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def start(self, batch: int, size: int) -> Any:
        """An empty memory, for ``size`` tokens that may be seen at once."""
        return self.mechanism.start(batch, self.kv_heads, size, self.head_width, self.out.weight)


class SharedSelfAttention(SelfAttention):
    """Q = K = V: one matrix in the place of three. Without turned positions every score matrix is symmetric."""

    def _parts(self) -> tuple[int, ...]:
        if self.heads != self.kv_heads:
            raise ValueError(f"one projection for all makes {self.heads} heads of keys too, not {self.kv_heads}")
        return (self.heads * self.head_width,)

    def _split(self, heads: Tensor, turn: Rotation) -> tuple[Tensor, ...]:
        both = turn.apply(self.norm_qk(heads))
        return both, both, heads


SELF_ATTENTION: dict[Projection, type[SelfAttention]] = {"separate": SelfAttention, "shared": SharedSelfAttention}


class ProjectionConfig(Choice):
    """How a layer makes queries, keys and values."""

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        """Refuse impossible sizes with a ValueError that names the fix."""

    def head_width(self, width: int, heads: int) -> int:
        """How wide a query is, and the key it is compared with."""
        return width // heads

    def turned_width(self, width: int, heads: int) -> int:
        """How much of a query and of a key positions may turn."""
        return width // heads

    def remembered(self, width: int, heads: int, kv_heads: int) -> int:
        """How many numbers a layer remembers of a token."""
        return 2 * kv_heads * (width // heads)

    def build(
        self, width: int, heads: int, kv_heads: int, mechanism: Mechanism, *, bias: bool, qk_norm: bool
    ) -> SelfAttention:
        raise NotImplementedError


@dataclass(frozen=True)
class SeparateConfig(ProjectionConfig, kind="separate"):
    """A matrix each for queries, keys and values."""

    def build(self, *parts, **named) -> SelfAttention:
        return SelfAttention(*parts, **named)


@dataclass(frozen=True)
class SharedConfig(ProjectionConfig, kind="shared"):
    """One matrix for all three."""

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        if heads != kv_heads:
            raise ValueError(f"one projection for all makes {heads} heads of keys too; set kv_heads = {heads}")

    def build(self, *parts, **named) -> SelfAttention:
        return SharedSelfAttention(*parts, **named)
