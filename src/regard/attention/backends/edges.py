"""The edges backend: softmax attention over a list of pairs, in time and memory that grow with the pairs.

For large sparse graphs (`EdgeList`): queries, keys and values are gathered for each pair, and the weighted values are
summed by query. The definition over all pairs gives the same numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.backends.sdpa import not_plain_softmax
from regard.attention.call import Backend, Call, Out, Plan, allowed, applying, repeat_kv
from regard.attention.masks.edge_list import edge_list
from regard.attention.score import Dot
from regard.attention.slots import AnySlots, Pairs, Slots, position_at


class EdgePairs(NamedTuple):
    """The allowed pairs of a plan, sorted by row and query."""

    row: Tensor  # [E]
    query: Tensor  # [E]
    key: Tensor  # [E]

    def of(self, plan: Plan, heads: int) -> Pairs:
        """As masks and biases read them: [E, 1], with heads [1, H]."""
        row, head = self.row[:, None], torch.arange(heads, device=self.row.device)[None]
        sides = ((plan.queries, self.query), (plan.keys, self.key))
        return Pairs(row, head, *(position_at(slots, row, index[:, None]) for slots, index in sides))

    def repeated(self, batch: int) -> "EdgePairs":
        """The same pairs in each of ``batch`` rows."""
        row = torch.arange(batch, device=self.row.device).repeat_interleave(len(self.row))
        return EdgePairs(row, self.query.repeat(batch), self.key.repeat(batch))

    def pick(self, which: Tensor) -> "EdgePairs":
        """Those for which ``which`` [E] is true."""
        return EdgePairs(*(x[which] for x in self))


class EdgeBackend(Backend):
    """Softmax attention whose mask has a list of edges."""

    name = "edges"

    def refuses(self, call: Call) -> list[str]:
        reasons = {
            "the mask has no list of edges": edge_list(call.plan.mask) is None,
            "it finds tokens by their order, which caches and graphs change": not _ordered(call.plan),
        }
        others = not_plain_softmax(call._replace(score=Dot()), takes_bias=True)
        return applying(reasons) + others

    def prepare(self, plan: Plan, device: torch.device) -> EdgePairs:
        listed = edge_list(plan.mask)
        assert listed is not None
        found = EdgePairs(*listed.positions())
        found = found.pick((found.query < plan.queries.length) & (found.key < plan.keys.length))
        if plan.rows > listed.rows:
            found = found.repeated(plan.rows)
        mask, pairs = plan.mask.to(device), found.of(plan, 1)
        return found.pick(allowed(mask, pairs).expand(len(found.row), 1)[:, 0])

    def run(self, call: Call) -> Out:
        edges: EdgePairs = call.plan.prepared
        batch, heads, queries = call.q.shape[:3]
        edges = edges.repeated(batch) if batch > call.plan.rows else edges
        query, key = (edges.row * x.shape[2] + at for x, at in ((call.q, edges.query), (call.k, edges.key)))
        q, k, v = _gathered(call.q, query), *(_gathered(repeat_kv(x, heads), key) for x in (call.k, call.v))
        plain = type(call.score) is Dot
        scores = (q * k).sum(-1) if plain else call.score(q[:, :, None], k[:, :, None])[..., 0, 0]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * call.factor
        if call.bias is not None:
            scores = call.bias.adjust(scores, edges.of(call.plan, heads))
        weights = F.dropout(_softmax(scores / call.temperature, query, batch * queries), call.dropout)
        mixed = weights[..., None].to(v.dtype) * v
        values = mixed.new_zeros(batch * queries, *mixed.shape[1:]).index_add(0, query, mixed)
        return Out(values.view(batch, queries, heads, -1).transpose(1, 2))


def _gathered(x: Tensor, place: Tensor) -> Tensor:
    """Queries, keys or values [B, H, N, D] at places row · N + index, [E, H, D]."""
    return x.transpose(1, 2).flatten(0, 1).index_select(0, place)


def _softmax(scores: Tensor, place: Tensor, count: int) -> Tensor:
    """The softmax of scores [E, H] over the pairs with the same ``place`` [E], of which there are ``count``."""
    index = place[:, None].expand_as(scores)
    blank = scores.new_full((count, scores.shape[1]), -torch.inf)
    largest = blank.scatter_reduce(0, index, scores.detach(), "amax")
    weights = (scores - largest[place]).exp()
    return weights / weights.new_zeros(blank.shape).index_add(0, place, weights).index_select(0, place)


def _ordered(plan: Plan) -> bool:
    """The order of each token is its index."""

    def plain(slots: AnySlots) -> bool:
        return not isinstance(slots, Slots) and getattr(slots, "start", 0) == 0

    return plain(plan.queries) and plain(plan.keys)
