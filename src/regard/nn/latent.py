"""Multi-head latent attention: keys and values are projected from a latent per token (DeepSeek-V2 2024, sec. 2.1).

    c = norm(W_d x)            the latent, which is cached (eq. 9), together with
    r = rotate(W_r x)          a rotated key, one for all heads (eq. 15)
    k = [W_k c, r], v = W_v c  per head (eq. 10, 11, 17)
    q = [W_q x, rotate(W_p x)]   per head, optionally through a query latent (eq. 12-14, 16)

A rotated key is no constant projection of the latent, hence the separate key ("decoupled", sec. 2.1.3). While decoding,
W_k is applied to the query instead and W_v after the attention: q·(W_k c) = (W_kᵀ q)·c. Then all heads attend to the
latents as one key/value head, and no keys and values are computed.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.attention import Dot, KVCache, Mechanism, Plan, Softmax
from regard.config import option
from regard.errors import UserError
from regard.nn.attention import AttentionContext, AttentionSizes, Cache, ProjectionConfig, SelfAttention, values
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.position import Rotation


class Widths(NamedTuple):
    """Widths of a head's query and key, by content and rotated, and of the latents."""

    content: int
    rotated: int
    rank: int
    query_rank: int | None


class LatentAttention(SelfAttention):
    """Self-attention that caches latents.

    ``qk_norm`` normalizes queries and the rotated key; keys by content must be linear in the latent, which is always
    normalized, so that W_k can be applied to the query.
    """

    def __init__(self, sizes: AttentionSizes, mechanism: Mechanism, widths: Widths):
        nn.Module.__init__(self)
        self.heads, self.kv_heads, self.head_width = sizes.heads, sizes.kv_heads, sizes.head_width
        self.widths = w = widths
        queries = (self.heads * w.content, self.heads * w.rotated)
        self.firsts = (sum(queries) if w.query_rank is None else w.query_rank, w.rank, w.rotated)
        first = queries if w.query_rank is None else self.firsts[:1]
        self.qkv = Linear(sizes.width, *first, *self.firsts[1:], bias=sizes.bias)  # all projections of x
        self.norm_query = nn.Identity() if w.query_rank is None else RMSNorm(w.query_rank)
        self.query_up = nn.Identity() if w.query_rank is None else Linear(w.query_rank, *queries, bias=False)
        self.norm_latent = RMSNorm(w.rank)
        self.up = Linear(w.rank, self.kv_heads * w.content, self.kv_heads * self.head_width, bias=False)
        self.norm_content = RMSNorm(w.content) if sizes.qk_norm else nn.Identity()
        self.norm_rotated = RMSNorm(w.rotated) if sizes.qk_norm else nn.Identity()
        self.mechanism = mechanism
        self.out = Linear(sizes.width, sizes.width, bias=sizes.bias)

    def mix(self, qkv: Tensor, context: AttentionContext) -> Tensor:
        """Attention between the projections: [B, N, ...] to [B, N, H E]."""
        queries, latent, key = qkv.split(self.firsts, dim=-1)
        q = self._queries(self.query_up(self.norm_query(queries)), context.rotation)  # [B, H, N, D]
        latent = self.norm_latent(latent)[:, None]  # [B, 1, N, R]
        key = context.rotation.apply(self.norm_rotated(key)[:, :, None]).transpose(1, 2)  # [B, 1, N, rotated]
        return self._mixed(q, latent, key, context).transpose(1, 2).flatten(2)

    def _mixed(self, q: Tensor, latent: Tensor, key: Tensor, context: AttentionContext) -> Tensor:
        if context.decode is None or not self.mechanism.grows:
            return self._attend(q, *self._unfold(latent, key), context)
        latents, keys = context.decode.store(cast(KVCache, context.cache), latent, key)
        few = q.shape[2] < self.head_width  # with more queries, projecting every key costs less
        if few and latents is not latent and self._absorbs():
            return self._absorbed(q, latents, keys, context.plan)
        return values(self.mechanism, self.mechanism(q, *self._unfold(latents, keys), context.plan))

    def _queries(self, both: Tensor, rotation: Rotation) -> Tensor:
        w = self.widths
        content, rotated = both.split([self.heads * w.content, self.heads * w.rotated], dim=-1)
        content = self.norm_content(content.unflatten(-1, (self.heads, w.content)))
        rotated = rotation.apply(self.norm_rotated(rotated.unflatten(-1, (self.heads, w.rotated))))
        return torch.cat((content, rotated), dim=-1).transpose(1, 2)

    def _unfold(self, latent: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, G, K, D] and values [B, G, K, E] of latents [B, 1, K, R] and rotated keys [B, 1, K, rotated]."""
        parts = self.up(latent[:, 0]).split(self.up.parts, dim=-1)
        content, v = (part.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for part in parts)
        return torch.cat((content, key.expand(-1, self.kv_heads, -1, -1)), dim=-1), v

    def _absorbed(self, q: Tensor, latent: Tensor, key: Tensor, plan: Plan) -> Tensor:
        """Attention with the latents as keys and values of one head that all queries share (sec. 2.1.2)."""
        w, shared = self.widths, self.heads // self.kv_heads
        for_keys, for_values = self.up.weight.to(q.dtype).split(self.up.parts)
        for_keys = for_keys.view(self.kv_heads, w.content, w.rank)
        for_values = for_values.view(self.kv_heads, self.head_width, w.rank)
        content, rotated = q.split([w.content, w.rotated], dim=-1)
        grouped = content.unflatten(1, (self.kv_heads, shared))  # [B, G, H/G, T, content]
        over = torch.einsum("bgstd,gdr->bgstr", grouped, for_keys).flatten(1, 2)
        # The mechanism scales by the width of these queries.
        scale = ((w.rank + w.rotated) / (w.content + w.rotated)) ** 0.5
        q, k = torch.cat((over, rotated), dim=-1) * scale, torch.cat((latent, key), dim=-1)
        mixed = self.mechanism(q, k.to(q.dtype), latent.to(q.dtype), plan).values  # [B, H, T, R]
        mixed = mixed.unflatten(1, (self.kv_heads, shared))
        return torch.einsum("bgstr,ger->bgste", mixed, for_values).flatten(1, 2)

    def _absorbs(self) -> bool:
        """Whether W_k can be applied to the query: scores must be plain dot products."""
        m = self.mechanism
        return type(m) is Softmax and type(m.score) is Dot and m.scale is None

    def start(self, batch: int, size: int) -> Cache:
        """An empty cache for ``size`` tokens per row: latents as keys, rotated keys as values."""
        if not self.mechanism.grows:
            return super().start(batch, size)
        widths = (self.widths.rank, self.widths.rotated)
        return KVCache(*(self.out.weight.new_zeros(batch, 1, size, width) for width in widths))


@dataclass(frozen=True)
class LatentConfig(ProjectionConfig, kind="latent"):
    """Keys and values projected from a latent vector: a small KV cache."""

    rank: int | None = option(None, "width of the latent (default: 4 heads, at most half the model)", least=1)
    query_rank: int | None = option(None, "width of a latent for queries (default: none)", least=1)
    rotated: int | None = option(None, "width of the rotated part of a query and a key (default: half a head)")
    content: int | None = option(None, "width of the rest of a query and a key (default: the rest of a head)")

    def widths(self, width: int, heads: int) -> Widths:
        """All widths, with defaults."""
        head = width // heads
        rank = max(1, min(4 * head, width // 2)) if self.rank is None else self.rank
        rotated = max(2, head // 4 * 2) if self.rotated is None else self.rotated
        return Widths(head - rotated if self.content is None else self.content, rotated, rank, self.query_rank)

    def fits(self, width: int, heads: int, kv_heads: int) -> None:
        w = self.widths(width, heads)
        if w.rotated < 2 or w.rotated % 2:
            raise ValueError(f"rotated must be an even number from 2 on, not {w.rotated}; positions rotate pairs")
        if w.content < 1:
            raise ValueError(
                f"heads of width {width // heads} have no room beside {w.rotated} rotated ones; set content = 4"
            )

    def head_width(self, width: int, heads: int) -> int:
        w = self.widths(width, heads)
        return w.content + w.rotated

    def rotary_width(self, width: int, heads: int) -> int:
        return self.widths(width, heads).rotated

    def cache_width(self, width: int, heads: int, kv_heads: int) -> int:
        w = self.widths(width, heads)
        return w.rank + w.rotated

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> SelfAttention:
        widths = self.widths(sizes.width, sizes.heads)
        made = LatentAttention(sizes, mechanism, widths)
        if widths.content + widths.rotated != made.head_width and not mechanism.grows:
            raise UserError(
                "this attention keeps a state for keys as wide as values; leave --model.projection.content and "
                "--model.projection.rotated unset, or use --model.attention softmax"
            )
        return made
