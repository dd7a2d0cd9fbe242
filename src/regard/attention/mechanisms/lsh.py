"""Locality-sensitive hashing: a query looks only at keys that fall into its bucket (Kitaev et al. 2020, Reformer).

A vector's bucket is the nearest of the directions [R; -R] for random R (Andoni et al. 2015): argmax [xR; -xR], which
does not change with the length of x and depends on that token alone. Queries and keys are different vectors here and
are hashed alike, so that a query finds the keys that point its way. Each round has rotations of its own; the rounds
are united: a pair that shares buckets in several rounds counts once, as one softmax over the union. (The paper divides
by the number of rounds that hold a pair, eq. 5-6, to the same effect.) The key of the query's own place is always seen.

Everything is said by one number per token and round, its *label*: key and query may meet where the query's label minus
the key's is 0 or 1. In the form "exact" a label is the bucket alone (doubled: never 1 apart). In the form "sorted" the
keys of a bucket stand in order and are cut into chunks, and a query looks at the chunk in which its own place falls and
at the one before: what is farther back in a full bucket is lost, and that is the only difference. Chunks are counted
within a bucket from its first key on, so they depend on nothing that comes later: this form is as causal as the other,
where the paper's chunks, cut from the row sorted as a whole, move with the number of later tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.attention.attention_config import AttentionConfig, Sizes
from regard.attention.backends.blocked import mix_in_blocks
from regard.attention.bias import Bias
from regard.attention.call import Call, Out, Plan, allowed, dense_pairs
from regard.attention.masks.mask import Mask
from regard.attention.mechanism import Mechanism
from regard.attention.mechanisms.lsh_tiles import Labels, Way, meet, tileable, tiles
from regard.attention.score import Dot
from regard.attention.slots import EMPTY, AnySlots, Pairs, Slots, TokenPosition, seat
from regard.attention.tiling.tile import Tile
from regard.attention.weigh import repeat_kv, weigh
from regard.config import option
from regard.errors import UserError

Form = Literal["exact", "sorted"]
WIDEST = 64  # directions of one hash; more buckets are a pair of hashes
SPAN = 2**32  # above every order


class LSH(Mechanism):
    """Softmax over the keys of the query's buckets, and over its own."""

    exact = False
    discontinuous = True  # rounding may move a vector into another bucket

    def __init__(
        self,
        width: int,
        buckets: int,
        rounds: int,
        seed: int = 0,
        *,
        form: Form = "exact",
        chunk: int = 64,
        bias: Bias | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.rounds, self.form, self.chunk = rounds, form, chunk
        self.score, self.bias, self.dropout = Dot(), bias, dropout
        self.hashes = factors(buckets)
        g = torch.Generator().manual_seed(seed)
        for i, size in enumerate(self.hashes):  # drawn on the CPU: the same on every device, and after every reload
            rotation = torch.randn(rounds, width, size // 2, generator=g, device="cpu")
            self.register_buffer(f"rotation_{i}", rotation, persistent=False)

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if self.form == "sorted" and isinstance(keys, Slots) and mask.reach().back is not None:
            raise UserError(
                "lsh in its sorted form counts the keys of a bucket from the first on, and a memory that rolls has "
                "forgotten them; set form = exact"
            )
        return super().plan(mask, queries, keys, like=like)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        labels = self.labels(q, k, plan)
        dropout = self.dropout if self.training else 0.0
        if self.form == "sorted" and tileable(plan, 4 * self.rounds * self.chunk):  # below, all pairs cost less
            way = Way(math.prod(self.hashes), self.chunk, self.bias, dropout)
            return Out(tiles(q, k, v, plan, labels, way), None)
        call = Call(q, k, v, plan, self.score, self.bias, dropout=dropout)

        def visible(tile: Tile, pairs: Pairs) -> Tensor:
            columns = tile.columns[0]
            return self._visible(plan, pairs, Labels(labels.q[..., tile.rows], labels.k[..., columns]))

        return Out(mix_in_blocks(call, visible), None)

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        pairs = dense_pairs(plan, q)
        return weigh(
            Call(q, k, k, plan, self.score, self.bias), pairs, self._visible(plan, pairs, self.labels(q, k, plan))
        )

    def _visible(self, plan: Plan, pairs: Pairs, labels: Labels) -> Tensor:
        """Allowed pairs that share a bucket in some round, and the query's own position."""
        met = pairs.q.order == pairs.k.order
        asked = repeat_kv(labels.k, labels.q.shape[1])
        for r in range(self.rounds):
            met = met | meet(labels.q[:, :, r, :, None], asked[:, :, r, None, :])
        return met & allowed(plan.mask, pairs)

    @torch.no_grad()
    def buckets(self, x: Tensor) -> Tensor:
        """The bucket of each vector x [B, H, N, D] in each round: [B, H, R, N]."""
        with torch.autocast(x.device.type, enabled=False):
            found = torch.zeros((), dtype=torch.long, device=x.device)
            for i, size in enumerate(self.hashes):
                rotation: Tensor = getattr(self, f"rotation_{i}")
                turned = x.detach().to(rotation.dtype)[:, :, None] @ rotation
                found = found * size + torch.cat((turned, -turned), dim=-1).argmax(-1)
        return found

    @torch.no_grad()
    def labels(self, q: Tensor, k: Tensor, plan: Plan) -> Labels:
        """Groups are buckets of one document. Empty places get groups of their own, which nobody meets."""
        many = math.prod(self.hashes)
        asking, asked = (row_of(slots, q.device) for slots in (plan.queries, plan.keys))
        shared = q.shape[1] // k.shape[1]
        q_group = torch.where(asking.segment == EMPTY, -4, self.buckets(q) + many * asking.segment)
        k_group = torch.where(asked.segment == EMPTY, -2, self.buckets(k) + many * asked.segment)
        if self.form == "exact":
            return Labels(2 * q_group, 2 * k_group)
        line = k_group * SPAN + asked.order  # unique, and sorted it is bucket by bucket in order
        line, here = line.sort(-1).values, line
        asking_here = q_group * SPAN + asking.order
        first = torch.searchsorted(line, k_group * SPAN)
        rank = torch.searchsorted(line, here) - first
        every = line.repeat_interleave(shared, dim=1)
        before = torch.searchsorted(every, asking_here, right=True) - torch.searchsorted(every, q_group * SPAN)
        stride = plan.keys.length // self.chunk + 2  # more than the chunks of any bucket
        newest = (before - 1).clamp(min=0)
        return Labels(q_group * stride + newest // self.chunk, k_group * stride + rank // self.chunk)


def row_of(slots: AnySlots, device: torch.device) -> TokenPosition:
    """All seats, [B|1, 1, 1, N]."""
    rows = torch.arange(slots.rows, device=device)[:, None, None, None]
    return seat(slots, rows, torch.arange(slots.length, device=device)[None, None, None])


def factors(buckets: int) -> tuple[int, ...]:
    """The sizes of the hashes whose product numbers the buckets.

    One hash costs as many products as it has directions, which for N/chunk buckets would be quadratic; two of the
    root's size tell as many buckets apart (as the paper's own code does).

    >>> factors(16), factors(1024), factors(70)
    ((16,), (32, 32), (10, 8))
    """
    if buckets <= WIDEST:
        return (buckets,)
    one = even(math.sqrt(buckets))
    return one, even(buckets / one)


def even(number: float) -> int:
    """The least even number that is no less."""
    return 2 * math.ceil(number / 2)


@dataclass(frozen=True)
class LSHConfig(AttentionConfig, kind="lsh"):
    """Attention over keys that point the query's way, found by hashing."""

    buckets: int | None = option(None, "buckets of a round, an even number (default: one per chunk of the context)")
    rounds: int = option(4, "how many hashes a pair may meet in")
    chunk: int = option(64, "keys of a bucket that stand together in the sorted form")
    form: Literal["exact", "sorted"] = option(
        "exact", "exact: all of a bucket, in quadratic time; sorted: two chunks of it, in linear time"
    )
    seed: int = option(0, "of the random rotations")

    def check(self) -> None:
        if self.buckets is not None and (self.buckets < 2 or self.buckets % 2):
            raise ValueError(f"buckets must be an even number, 2 or more, not {self.buckets}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, not {self.rounds}")
        if self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {self.chunk}")

    def mechanism(self, sizes: Sizes) -> Mechanism:
        if sizes.backend not in ("auto", "reference", "blocked"):
            raise UserError(f"lsh cannot run on the backend {sizes.backend!r}; set backend = auto")
        buckets = even(sizes.context / self.chunk) if self.buckets is None else self.buckets
        options = {"form": self.form, "chunk": self.chunk, "bias": sizes.bias, "dropout": sizes.dropout}
        return LSH(sizes.head_width, buckets, self.rounds, self.seed, **options)
