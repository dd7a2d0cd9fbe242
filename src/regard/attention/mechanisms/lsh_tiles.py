"""The sorted form of hashed attention, in tiles: linear in the length, forward and backward.

Round by round, keys are sorted by label (see ``lsh.py``), queries too. Queries of one label look at the same two chunks
of keys, which stand side by side: they fill tiles of a fixed size, each against one stretch of sorted keys. A tile
gives its queries' mix and the logarithm of what they summed; the softmax over all rounds weighs the mixes by those
sums. A pair is counted in the first round in which it meets, so that the union comes out exactly.

Tiles are worked off a piece at a time and computed again in the backward pass: memory does not grow with rounds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.attention.bias import Bias
from regard.attention.call import Plan, allowed
from regard.attention.slots import Packed, Padded, Pairs, Range, position_at

SCORES = 2**21  # of one piece


class Labels(NamedTuple):
    """Per round and token: whom it may meet."""

    q: Tensor  # [B, H, R, Q]
    k: Tensor  # [B, G, R, K]


class Way(NamedTuple):
    """How tiles are worked off."""

    groups: int  # how many buckets there are
    chunk: int
    bias: Bias | None
    dropout: float


class Sorted(NamedTuple):
    """One round. Z rows of batch and key/value head, M queries each, T tiles of t queries, W keys to a tile."""

    query: Tensor  # [Z, T·t] the query of each place, -1: none
    place: Tensor  # [Z, M] the place of each query
    key: Tensor  # [Z, T, W] the keys of each tile
    inside: Tensor  # [Z, T, W] False past the last key


def meet(asking: Tensor, asked: Tensor) -> Tensor:
    """Whether labels let a query see a key."""
    apart = asking - asked
    return (apart == 0) | (apart == 1)


def tileable(plan: Plan, least: int) -> bool:
    """Whether tokens look at their own row, in order, and it is longer than ``least``."""
    slots = plan.queries
    counted = isinstance(slots, Range | Padded) or (isinstance(slots, Packed) and slots.documents is not None)
    return plan.own and counted and slots.length > least


def tiles(q: Tensor, k: Tensor, v: Tensor, plan: Plan, labels: Labels, way: Way) -> Tensor:
    """q [B, H, N, D], k [B, G, N, D], v [B, G, N, E] to [B, H, N, E], by labels of the sorted form."""
    batch, heads, length, _ = q.shape
    shared = heads // k.shape[1]
    q, k, v = q.reshape(-1, shared * length, q.shape[3]), k.flatten(0, 1), v.flatten(0, 1)  # [Z, M or N, D]
    work = Tiles(plan, way, labels)
    parts = [work.own(q, k, v), *(work.round(r, q, k, v) for r in range(labels.k.shape[2]))]
    mixes, sums = torch.stack([part[..., :-1] for part in parts]), torch.stack([part[..., -1] for part in parts])
    nothing = (sums <= lowest(sums) / 2).all(0)[..., None]
    mixed = (sums.softmax(0)[..., None] * mixes).sum(0).masked_fill(nothing, 0)
    return mixed.view(batch, heads, length, -1)


class Tiles:
    """The rounds of one call."""

    def __init__(self, plan: Plan, way: Way, labels: Labels):
        self.plan, self.way, self.kv_heads = plan, way, labels.k.shape[1]
        self.shared = labels.q.shape[1] // self.kv_heads
        self.asking = labels.q.unflatten(1, (-1, self.shared)).transpose(2, 3).flatten(0, 1).flatten(2)  # [Z, R, M]
        self.asked = labels.k.flatten(0, 1)  # [Z, R, N]
        self.size = max(1, way.chunk // 2)  # queries of a tile: small ones leave fewer places empty

    def own(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each query with the key of its own place: [Z, M, E + 1]."""
        k, v = k.repeat(1, self.shared, 1), v.repeat(1, self.shared, 1)
        index = torch.arange(q.shape[1], device=q.device)[None]
        pairs = self._pairs(torch.arange(q.shape[0], device=q.device)[:, None], index, index % self._length)
        score = self._biased((q * k).sum(-1) / math.sqrt(q.shape[-1]), pairs)
        score = score.masked_fill(~allowed(self.plan.mask, pairs), lowest(score))
        if self.way.dropout:
            v = v * F.dropout(torch.ones_like(score), self.way.dropout)[..., None]
        return torch.cat((v, score[..., None]), dim=-1)

    def round(self, r: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What queries find in round ``r`` and in none before: their mix, and log Σ exp(score), [Z, M, E + 1]."""
        how = self.sort(r)
        rows, (count, keys) = how.key.shape[0], how.key.shape[1:]
        placed = moved(q, how.query, how.place).unflatten(1, (count, self.size))  # [Z, T, t, D]
        at_once = max(1, SCORES // (count * self.size * keys))  # rows of a piece, or else tiles of one
        few = count if at_once > 1 else max(1, SCORES // (self.size * keys))
        again = torch.is_grad_enabled()
        done = []
        # Cut once with `split`: the backward of a slice per piece would touch everything for every piece.
        pieces = zip(placed.split(at_once), k.split(at_once), v.split(at_once), strict=True)
        for low, (some_q, some_k, some_v) in zip(range(0, rows, at_once), pieces, strict=True):
            row = slice(low, low + at_once)
            line = []
            for first, tile in zip(range(0, count, few), some_q.split(few, dim=1), strict=True):
                given = (r, how, row, slice(first, first + few), tile, some_k, some_v)
                line.append(checkpoint(self._piece, *given, use_reentrant=False) if again else self._piece(*given))
            done.append(torch.cat(line, dim=1))
        return moved(torch.cat(done).flatten(1, 2), how.place, how.query)

    def _piece(self, r: int, how: Sorted, row: slice, tile: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Some tiles of some rows: q [z, T, t, D], k [z, N, D] and v [z, N, E] to [z, T, t, E + 1]."""
        z = torch.arange(q.shape[0], device=q.device)[:, None, None]
        key, inside = how.key[row, tile], how.inside[row, tile]  # [z, T, W]
        query = how.query.unflatten(1, (-1, self.size))[row, tile].clamp(min=0)  # [z, T, t]
        place = key + z * self._length
        near_k, near_v = F.embedding(place, k.flatten(0, 1)), F.embedding(place, v.flatten(0, 1))  # [z, T, W, D]
        pairs = self._pairs((z + row.start)[..., None], query[..., None], key[..., None, :])
        scores = self._biased(q @ near_k.transpose(-2, -1) / math.sqrt(q.shape[-1]), pairs)
        seen = self.plan.mask.allows(pairs) & (pairs.q.order != pairs.k.order) & inside[..., None, :]
        for other in range(r + 1):
            one = self.asking[row, other].gather(1, query.flatten(1)).view(query.shape)
            two = self.asked[row, other].gather(1, key.flatten(1)).view(key.shape)
            met = meet(one[..., None], two[..., None, :])
            seen = seen & (met if other == r else ~met)
        weights, total = summed(scores.masked_fill(~seen, lowest(scores)))
        weights = F.dropout(weights, self.way.dropout) if self.way.dropout else weights
        return torch.cat((weights @ near_v, total), dim=-1)

    def sort(self, r: int) -> Sorted:
        """Places of queries in tiles, and the keys of each."""
        asked, key = self.asked[:, r].sort(stable=True)  # [Z, N]
        asking, query = self.asking[:, r].sort(stable=True)  # [Z, M]
        (rows, many), length, size = asking.shape, asked.shape[1], self.size
        among = torch.arange(many, device=asking.device) - torch.searchsorted(asking, asking)  # its equals
        tile = (among % size == 0).cumsum(1) - 1
        count = self.most(many, length)
        if asking.device.type == "cpu" and not torch.compiler.is_compiling():
            count = int(tile.amax()) + 1  # on other devices that would be waiting, and for a compiler a shape unknown
        place = tile * size + among % size
        of_place = place.new_full((rows, count * size), -1).scatter(1, place, query)
        of_query = torch.empty_like(place).scatter(1, query, place)
        label = asking.new_zeros(rows, count).scatter(1, tile, asking)
        ahead = torch.arange(2 * self.way.chunk, device=asking.device)
        stretch = torch.searchsorted(asked, label - 1)[..., None] + ahead  # [Z, T, W]
        held = key.gather(1, stretch.clamp(max=length - 1).flatten(1)).view(stretch.shape)
        return Sorted(of_place, of_query, held, stretch < length)

    def most(self, many: int, length: int) -> int:
        """How many tiles there can be: full ones, and one that is not for each label."""
        slots = self.plan.queries
        documents = max(map(len, slots.documents)) if isinstance(slots, Packed) and slots.documents else 1
        labels = documents * self.way.groups + length // self.way.chunk + 1
        return min(many, many // self.size + labels)

    @property
    def _length(self) -> int:
        return self.plan.keys.length

    def _pairs(self, row: Tensor, query: Tensor, key: Tensor) -> Pairs:
        """From rows of batch and key/value head, queries (of several heads in one row) and keys, all by number."""
        batch = row // self.kv_heads
        head = row % self.kv_heads * self.shared + query // self._length
        queries = position_at(self.plan.queries, batch, query % self._length)
        return Pairs(batch, head, queries, position_at(self.plan.keys, batch, key))

    def _biased(self, scores: Tensor, pairs: Pairs) -> Tensor:
        return scores if self.way.bias is None else self.way.bias.adjust(scores, pairs)


def moved(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """x [Z, M, D] to places [Z, L, D]: ``there`` says what comes to each (-1: nothing), ``back`` where each goes."""
    return taken(x, there) if torch.compiler.is_compiling() else Moved.apply(x, there, back)


def summed(x: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(x) and log Σ exp(x) over the last axis [..., 1]."""
    return (x.softmax(-1), x.logsumexp(-1, keepdim=True)) if torch.compiler.is_compiling() else Summed.apply(x)


class Moved(Function):
    """A one-to-one move: the way back is a gather too, where a scatter is slow. A compiler gets the plain formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return taken(x, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (back,) = ctx.saved_tensors
        return taken(grad, back), None, None


class Summed(Function):
    """By one exponential, softmax's own: ``torch.exp`` is slow where nearly everything is hidden."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = x.softmax(-1)
        ctx.save_for_backward(weights)
        return weights, x.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights,) = ctx.saved_tensors
        return weights * (grad - (grad * weights).sum(-1, keepdim=True) + grad_total)


def taken(x: Tensor, index: Tensor) -> Tensor:
    """x [Z, M, D] at [Z, L], zero where the index is -1."""
    row = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    got = x.reshape(-1, x.shape[2]).index_select(0, (index.clamp(min=0) + row).flatten())
    return got.view(*index.shape, -1).masked_fill((index < 0)[..., None], 0)


def lowest(x: Tensor) -> float:
    """Far below every score, and so that sums of it stay finite."""
    return torch.finfo(x.dtype).min / 4
