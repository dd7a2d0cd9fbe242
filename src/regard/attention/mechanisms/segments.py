"""Attention by segments, with a memory of earlier ones (Dai et al. 2019, Transformer-XL, sec. 3.2) and summaries of
those before (Rae et al. 2020, Compressive Transformer, sec. 3).

A text is divided into segments of L tokens. A token sees its own segment up to itself, the M tokens before the segment,
and one key in place of every c tokens further back, up to R such summaries. Information passes from segment to segment
through the layers, so n layers look back over n (M + c R) tokens at a cost linear in the text.

The recurrence is thus a mask plus a stop-gradient (``detached``): the memory is a constant, as if computed before.
Segments are counted in phases, so that each packed document has its own.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.backends.sdpa import even_widths
from regard.attention.cache import SLACK, DecodeInput, KVCache
from regard.attention.call import Call, Out, Plan, allowed, dense_pairs, mix, weigh
from regard.attention.masks.mask import And, Mask, Reach
from regard.attention.masks.patterns import Causal
from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism
from regard.attention.normalizer import SOFTMAX
from regard.attention.score import Dot
from regard.attention.slots import EMPTY, AnySlots, Padded, Pairs, Range, Slots, make_pairs, position_at, valid
from regard.config import option
from regard.errors import UserError


@dataclass(frozen=True)
class Segment(Mask):
    """The query's own segment of ``size`` tokens and the ``memory`` tokens before it, by phases."""

    size: int
    memory: int

    def allows(self, pairs: Pairs) -> Tensor:
        start = pairs.q.phase // self.size * self.size
        return (pairs.k.phase >= start - self.memory) & (pairs.k.phase < start + self.size)

    def reach(self) -> Reach:
        return Reach(self.size - 1 + self.memory, self.size - 1)


class SegmentCache(NamedTuple):
    """The latest keys and values, and sums over every ``rate`` of them."""

    recent: KVCache  # [B, G, S, D]
    sums: KVCache  # [B, G, R', D]; group g of a row is at index g mod R'


class Segmented(Mechanism):
    """Softmax over the own segment, a memory, and summaries of earlier tokens."""

    def __init__(self, heads: int, size: int, memory: int, summaries: int, rate: int, detached: bool, dropout: float):
        super().__init__()
        self.size, self.memory, self.summaries, self.rate = size, memory, summaries, rate
        self.detached, self.dropout, self.score = detached, dropout, Dot()
        # The weights of the tokens of a summary, for keys and for values: a convolution per head.
        self.shares = nn.Parameter(torch.empty(2, heads, rate)) if summaries else None
        self.reset()

    def reset(self) -> None:
        """Summaries start as means."""
        if self.shares is not None:
            nn.init.constant_(self.shares, 1 / self.rate)

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if not (isinstance(mask, And) and isinstance(mask.left, Causal) and isinstance(mask.right, Segment)):
            raise UserError("segments with a memory need a causal model; use --model.attention softmax here")
        plan = super().plan(mask, queries, keys, like=like)
        from_zero = isinstance(queries, Padded) or (isinstance(queries, Range) and not queries.start)
        if keys is None and from_zero:
            return plan._replace(prepared=self._borders(queries.length, like.device))
        return plan

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        sums = self._summed(k, v) if self.shares is not None else None
        if plan.prepared is None:
            return Out(self._dense(q, k, v, sums, plan, plan.keys))
        mixed = self._by_segment(q, k, v, sums, plan)
        if isinstance(plan.queries, Padded):
            mixed = mixed.masked_fill(~plan.queries.filled()[:, None, :, None], 0)
        return Out(mixed)

    @property
    def unobservable(self) -> str | None:
        return "Segmented with summaries weighs sums of several keys, not each key" if self.summaries else None

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor | None:
        return None if self.summaries else weigh(Call(q, k, k, plan, self.score, SOFTMAX), dense_pairs(plan, q))

    # Full forward pass ----------------------------------------------------------------------------------------------

    def _borders(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The visible keys of each segment, [S, 1, L, R + M + L]: its summaries, its memory and its own tokens.

        And the last tokens of the groups that its summaries are of, [S, R].
        """
        start = torch.arange(0, length, self.size, device=device)[:, None]  # [S, 1]
        own = torch.arange(self.size, device=device)
        group = self._groups(start) + torch.arange(self.summaries, device=device)
        before = start - self.memory + torch.arange(self.memory, device=device)
        there = torch.cat((group >= 0, before >= 0), dim=-1)[:, None, :].expand(-1, self.size, -1)
        causal = (own[:, None] >= own).expand(len(start), -1, -1)
        ends = (group.clamp(min=0) * self.rate + self.rate - 1).clamp(max=length - 1)
        return torch.cat((there, causal), dim=-1)[:, None], ends

    def _groups(self, start: Tensor) -> Tensor:
        """The first of the ``summaries`` groups that end before the memory of the segment at ``start``."""
        return (start - self.memory).div(self.rate, rounding_mode="floor") - self.summaries

    def _by_segment(self, q: Tensor, k: Tensor, v: Tensor, sums: tuple[Tensor, Tensor] | None, plan: Plan) -> Tensor:
        """Every segment as a batch row, so that one fused call computes all of them."""
        seen, ends = plan.prepared
        (batch, heads, length, _), segments = q.shape, seen.shape[0]
        short = segments * self.size - length
        shared = heads // k.shape[1]
        near = [self._near(x, short, segments) for x in (k, v)]  # [B, S, G, M + L, D]
        if sums is not None:
            far = [x[:, :, ends].transpose(1, 2) for x in sums]  # [B, S, G, R, D]
            near = [torch.cat(both, dim=3) for both in zip(far, near, strict=True)]
        k, v = (x.repeat_interleave(shared, dim=2).flatten(0, 1) for x in near)
        q = F.pad(q, (0, 0, 0, short)).unflatten(2, (segments, self.size)).transpose(1, 2).flatten(0, 1)
        scale = q.shape[-1] ** -0.5
        q, k, v, width = even_widths(q, k, v)
        seen = seen.repeat(batch, 1, 1, 1)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, scale=scale)[..., :width]
        mixed = mixed.unflatten(0, (batch, segments)).transpose(1, 2).flatten(2, 3)
        return mixed[:, :, :length]

    def _near(self, x: Tensor, short: int, segments: int) -> Tensor:
        """[B, G, N, D] to [B, S, G, M + L, D]: each segment with its memory, detached from the graph."""
        own = F.pad(x, (0, 0, 0, short)).unflatten(2, (segments, self.size)).transpose(1, 2)
        if not self.memory:
            return own
        past = F.pad(x.detach() if self.detached else x, (0, 0, self.memory, short))
        before = past.unfold(2, self.memory, self.size)[:, :, :segments]  # [B, G, S, D, M]
        return torch.cat((before.permute(0, 2, 1, 4, 3), own), dim=3)

    def _summed(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """At each token the weighted sum over it and the ``rate`` - 1 before it, [B, G, N, D] each."""
        assert self.shares is not None
        shares = self.shares.to(k.dtype)
        k, v = (x.detach() if self.detached else x for x in (k, v))
        return _slid(k, shares[0]), _slid(v, shares[1])

    # Any slots ------------------------------------------------------------------------------------------------------

    def _dense(
        self, q: Tensor, k: Tensor, v: Tensor, sums: tuple[Tensor, Tensor] | None, plan: Plan, ends: AnySlots
    ) -> Tensor:
        """The keys of the own segment, those of the memory (constants), and summaries, side by side in one softmax.

        ``sums`` are summaries of the groups that end at ``ends``; positions at which no group ends are hidden.
        """
        pairs = make_pairs(plan.queries, plan.keys, heads=1, device=q.device, batch=q.shape[0])
        visible = allowed(plan.mask, pairs)
        if self.detached and torch.is_grad_enabled():
            own = pairs.k.phase // self.size == pairs.q.phase // self.size
            visible = torch.cat((visible & own, visible & ~own), dim=-1)
            k, v = torch.cat((k, k.detach()), dim=2), torch.cat((v, v.detach()), dim=2)
        if sums is not None:
            ending = make_pairs(plan.queries, ends, heads=1, device=q.device, batch=q.shape[0])
            group = ending.k.phase // self.rate
            first = self._groups(ending.q.phase // self.size * self.size)
            whole = ending.k.phase % self.rate == self.rate - 1
            summarized = whole & (group >= first) & (group < first + self.summaries)
            visible = torch.cat((visible, valid(ending) & summarized), dim=-1)
            k, v = (torch.cat(both, dim=2) for both in zip((k, v), sums, strict=True))
        dropout = self.dropout if self.training else 0.0
        return mix(Call(q, k, v, plan, self.score, SOFTMAX, dropout=dropout), pairs, visible).values

    # Decoding -------------------------------------------------------------------------------------------------------

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> SegmentCache:
        recent = KVCache.start(batch, heads, size, width, like)
        # A step adds up to SLACK tokens, and the newest groups are still in the memory and the segment.
        room = self.summaries + (self.size + self.memory + SLACK) // self.rate + 2 if self.summaries else 0
        return SegmentCache(recent, KVCache.start(batch, heads, room, width, like))

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, cache: SegmentCache, decode: DecodeInput) -> Out:
        near_k, near_v = decode.store(cache.recent, k, v)
        if self.shares is None:
            return self(q, near_k, near_v, plan)
        ends = self._add(cache.sums, k, v, plan.queries)
        if plan.prepared is not None:  # the first step sees its own tokens only
            return self(q, k, v, plan)
        sums = (cache.sums.k, cache.sums.v)
        return Out(self._dense(q, near_k, near_v, sums, plan, ends))

    def _add(self, sums: KVCache, k: Tensor, v: Tensor, queries: AnySlots) -> Slots:
        """Add new tokens to the sums of their groups, in place; return the last token of each stored group."""
        assert self.shares is not None
        batch, room = k.shape[0], sums.k.shape[2]
        rows = torch.arange(batch, device=k.device)[:, None]
        at = position_at(queries, rows, torch.arange(k.shape[2], device=k.device))
        phase, real = at.phase.expand(batch, -1), (at.segment > EMPTY).expand(batch, -1)  # [B, T]
        newest = (phase * real).amax(1, keepdim=True) // self.rate
        group, offset = phase // self.rate, phase % self.rate
        counts = real & (group > newest - room)
        slot = group % room
        begins = torch.where(counts & (offset == 0), slot, room)  # the last index is for tokens that begin no group
        begun = torch.zeros(batch, room + 1, dtype=torch.bool, device=k.device).scatter(1, begins, True)[:, :room]
        for buffer, new, shares in zip(sums, (k, v), self.shares.to(k.dtype), strict=True):
            buffer.masked_fill_(begun[:, None, :, None], 0)
            weighted = new * (shares[:, offset].transpose(0, 1) * counts[:, None])[..., None]  # [B, G, T, D]
            buffer.scatter_add_(2, slot[:, None, :, None].expand_as(new), weighted.to(buffer.dtype))
        there = newest - (newest - torch.arange(room, device=k.device)) % room  # the group at each index
        end = there * self.rate + self.rate - 1
        return Slots(end, torch.where(there >= 0, 0, EMPTY), end)


def _slid(x: Tensor, shares: Tensor) -> Tensor:
    """x [B, G, N, D], shares [G, c] to the weighted sums over the c tokens up to each."""
    padded = F.pad(x, (0, 0, shares.shape[1] - 1, 0))
    windows = padded.unfold(2, shares.shape[1], 1)  # [B, G, N, D, c]
    return torch.einsum("bgndc,gc->bgnd", windows, shares)


@dataclass(frozen=True)
class SegmentsConfig(AttentionConfig, kind="segments"):
    """Segments with a memory of earlier ones (Transformer-XL), and summaries further back (compressive memory)."""

    size: int = option(64, "tokens of a segment", least=1)
    memory: int = option(64, "visible tokens before the segment", least=0)
    summaries: int = option(0, "visible summaries of tokens before the memory", least=0)
    rate: int = option(4, "tokens per summary", least=1)
    detached: bool = option(True, "no gradient flows through the memory into earlier segments")

    def pattern(self) -> Mask:
        return Segment(self.size, self.memory)

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        if spec.bias is not None:
            raise UserError("segments take no bias from positions; set --model.position rotary")
        lengths = (self.size, self.memory, self.summaries, self.rate)
        return Segmented(spec.kv_heads, *lengths, self.detached, spec.dropout)
