"""The sorted form of hashed attention, in tiles: linear in the length, forward and backward.

In each round, keys and queries are sorted by label (see ``lsh.py``). Queries of one label see the same two chunks of
keys, which are adjacent: they fill tiles of a fixed size, each with one range of sorted keys. A tile returns the mixed
values of its queries and their log-sum-exp, by which the rounds are merged. A pair is counted in the first round in
which its labels match, so that the result is the softmax over the union.

Tiles are computed in batches and recomputed in the backward pass: memory does not grow with the number of rounds.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.attention.call import Call, Plan, SavedTensors, allowed, score
from regard.attention.slots import Packed, Padded, Pairs, Range, position_at

SCORES = 2**21  # scores computed at a time


class Labels(NamedTuple):
    """A label per round and token; a query may see a key whose label is equal or one less."""

    q: Tensor  # [B, H, R, Q]
    k: Tensor  # [B, G, R, K]


class Sorted(NamedTuple):
    """One round. Z rows of batch and key/value head, M queries each, T tiles of t queries, W keys to a tile."""

    query: Tensor  # [Z, T·t] the query at each index of the tiles, -1: none
    place: Tensor  # [Z, M] the index of each query in the tiles
    key: Tensor  # [Z, T, W] the keys of each tile
    inside: Tensor  # [Z, T, W] False past the last key


def match(q: Tensor, k: Tensor) -> Tensor:
    """Whether labels let a query see a key."""
    difference = q - k
    return (difference == 0) | (difference == 1)


def tileable(plan: Plan, least: int) -> bool:
    """Whether queries and keys are the same tokens, in order, and more than ``least``."""
    slots = plan.queries
    counted = isinstance(slots, Range | Padded) or (isinstance(slots, Packed) and slots.documents is not None)
    return plan.same_tokens and counted and slots.length > least


def mix_tiles(call: Call, labels: Labels, buckets: int, chunk: int, avoid_self: bool = False) -> Tensor:
    """The mixed values [B, H, N, E] of a call, by labels of the sorted form with chunks of ``chunk`` keys.

    ``avoid_self``: the key at the query's own position counts only if no other key is visible.
    """
    q, k, v = call.q, call.k, call.v
    batch, heads, length, _ = q.shape
    shared = heads // k.shape[1]
    q, k, v = q.reshape(-1, shared * length, q.shape[3]), k.flatten(0, 1), v.flatten(0, 1)  # [Z, M or N, D]
    work = LSHRounds(call, labels, buckets, chunk)
    parts = [work.own(q, k, v), *(work.round(r, q, k, v) for r in range(labels.k.shape[2]))]
    mixes, sums = torch.stack([part[..., :-1] for part in parts]), torch.stack([part[..., -1] for part in parts])
    if avoid_self:
        others = (sums[1:] > lowest(sums) / 2).any(0)
        sums = torch.cat((sums[:1].masked_fill(others, lowest(sums)), sums[1:]))
    nothing = (sums <= lowest(sums) / 2).all(0)[..., None]
    mixed = (sums.softmax(0)[..., None] * mixes).sum(0).masked_fill(nothing, 0)
    return mixed.view(batch, heads, length, -1)


class LSHRounds:
    """The rounds of one call."""

    def __init__(self, call: Call, labels: Labels, buckets: int, chunk: int):
        self.call, self.plan, self.kv_heads = call, call.plan, labels.k.shape[1]
        self.buckets, self.chunk, self.length = buckets, chunk, call.plan.keys.length
        self.shared = labels.q.shape[1] // self.kv_heads
        self.q_labels = labels.q.unflatten(1, (-1, self.shared)).transpose(2, 3).flatten(0, 1).flatten(2)  # [Z, R, M]
        self.k_labels = labels.k.flatten(0, 1)  # [Z, R, N]
        self.size = max(1, chunk // 2)  # queries of a tile: small tiles have less padding

    def own(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each query with the key at its own position: [Z, M, E + 1]."""
        k, v = k.repeat(1, self.shared, 1), v.repeat(1, self.shared, 1)
        index = torch.arange(q.shape[1], device=q.device)[None]
        pairs = self._pairs(torch.arange(q.shape[0], device=q.device)[:, None], index, index % self.length)
        scores = (q * k).sum(-1) * self.call.factor
        scores = scores if self.call.bias is None else self.call.bias.adjust(scores, pairs)
        scores = scores.masked_fill(~allowed(self.plan.mask, pairs), lowest(scores))
        if self.call.dropout:
            v = v * F.dropout(torch.ones_like(scores), self.call.dropout)[..., None]
        return torch.cat((v, scores[..., None]), dim=-1)

    def round(self, r: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The mixed values over the keys of round ``r`` and of none before, and log Σ exp(score), [Z, M, E + 1]."""
        how = self.sort(r)
        rows, (count, keys) = how.key.shape[0], how.key.shape[1:]
        placed = moved(q, how.query, how.place).unflatten(1, (count, self.size))  # [Z, T, t, D]
        at_once = max(1, SCORES // (count * self.size * keys))  # rows at a time, or else tiles of one
        few = count if at_once > 1 else max(1, SCORES // (self.size * keys))
        again = torch.is_grad_enabled()
        done = []
        # Cut once with `split`: the backward of one slice per piece would read everything for every piece.
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
        place = key + z * self.length
        near_k, near_v = F.embedding(place, k.flatten(0, 1)), F.embedding(place, v.flatten(0, 1))  # [z, T, W, D]
        pairs = self._pairs((z + row.start)[..., None], query[..., None], key[..., None, :])
        scores = score(self.call, q, near_k, pairs)
        seen = self.plan.mask.allows(pairs) & (pairs.q.order != pairs.k.order) & inside[..., None, :]
        for other in range(r + 1):
            one = self.q_labels[row, other].gather(1, query.flatten(1)).view(query.shape)
            two = self.k_labels[row, other].gather(1, key.flatten(1)).view(key.shape)
            met = match(one[..., None], two[..., None, :])
            seen = seen & (met if other == r else ~met)
        weights, total = summed(scores.masked_fill(~seen, lowest(scores)))
        weights = F.dropout(weights, self.call.dropout) if self.call.dropout else weights
        return torch.cat((weights @ near_v, total), dim=-1)

    def sort(self, r: int) -> Sorted:
        """The indices of queries in tiles, and the keys of each tile."""
        k_label, key = self.k_labels[:, r].sort(stable=True)  # [Z, N]
        q_label, query = self.q_labels[:, r].sort(stable=True)  # [Z, M]
        (rows, many), length, size = q_label.shape, k_label.shape[1], self.size
        among = torch.arange(many, device=q_label.device) - torch.searchsorted(q_label, q_label)  # of the same label
        tile = (among % size == 0).cumsum(1) - 1
        count = self.most(many, length)
        if q_label.device.type == "cpu" and not torch.compiler.is_compiling():
            count = int(tile.amax()) + 1  # elsewhere this would synchronize, or be an unknown shape
        place = tile * size + among % size
        of_place = place.new_full((rows, count * size), -1).scatter(1, place, query)
        of_query = torch.empty_like(place).scatter(1, query, place)
        label = q_label.new_zeros(rows, count).scatter(1, tile, q_label)
        ahead = torch.arange(2 * self.chunk, device=q_label.device)
        window = torch.searchsorted(k_label, label - 1)[..., None] + ahead  # [Z, T, W]
        held = key.gather(1, window.clamp(max=length - 1).flatten(1)).view(window.shape)
        return Sorted(of_place, of_query, held, window < length)

    def most(self, many: int, length: int) -> int:
        """The greatest number of tiles: full ones, and one that is not full for each label."""
        slots = self.plan.queries
        documents = max(map(len, slots.documents)) if isinstance(slots, Packed) and slots.documents else 1
        labels = documents * self.buckets + length // self.chunk + 1
        return min(many, many // self.size + labels)

    def _pairs(self, row: Tensor, query: Tensor, key: Tensor) -> Pairs:
        """The pairs of rows (batch and key/value head), queries (of several heads in one row) and keys, by index."""
        batch = row // self.kv_heads
        head = row % self.kv_heads * self.shared + query // self.length
        queries = position_at(self.plan.queries, batch, query % self.length)
        return Pairs(batch, head, queries, position_at(self.plan.keys, batch, key))


def moved(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """x [Z, M, D] permuted to [Z, L, D]: ``there`` [Z, L] is the source of each (-1: zero), ``back`` the inverse."""
    return taken(x, there) if torch.compiler.is_compiling() else Permutation.apply(x, there, back)


def summed(x: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(x) and log Σ exp(x) over the last axis [..., 1]."""
    return (x.softmax(-1), x.logsumexp(-1, keepdim=True)) if torch.compiler.is_compiling() else SoftmaxAndLse.apply(x)


class Permutation(Function):
    """A permutation whose backward pass is a gather too, since a scatter is slow. A compiler gets the plain formula."""

    @staticmethod
    def forward(ctx: SavedTensors, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return taken(x, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedTensors, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (back,) = ctx.saved_tensors
        return taken(grad, back), None, None


class SoftmaxAndLse(Function):
    """By one exponential, softmax's own: ``torch.exp`` is slow where nearly everything is hidden."""

    @staticmethod
    def forward(ctx: SavedTensors, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = x.softmax(-1)
        ctx.save_for_backward(weights)
        return weights, x.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedTensors, grad: Tensor, grad_total: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights,) = ctx.saved_tensors
        return weights * (grad - (grad * weights).sum(-1, keepdim=True) + grad_total)


def taken(x: Tensor, index: Tensor) -> Tensor:
    """x [Z, M, D] at [Z, L], zero where the index is -1."""
    row = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    got = x.reshape(-1, x.shape[2]).index_select(0, (index.clamp(min=0) + row).flatten())
    return got.view(*index.shape, -1).masked_fill((index < 0)[..., None], 0)


def lowest(x: Tensor) -> float:
    """Far below every score; sums of it stay finite."""
    return torch.finfo(x.dtype).min / 4
