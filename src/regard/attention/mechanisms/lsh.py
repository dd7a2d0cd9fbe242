"""Locality-sensitive hashing: a query sees only the keys of the same bucket (Kitaev et al. 2020, Reformer).

A vector's bucket is the nearest of the directions [R; -R] for random R (Andoni et al. 2015): argmax [xR; -xR], which
does not change with the norm of x and depends on that token alone. Queries and keys are different vectors here with the
same hash, so that a query finds the keys of similar direction. Each round has its own rotations, and one softmax runs
over the union of all rounds: a pair that shares buckets in several rounds counts once. (The paper divides by the number
of rounds that contain a pair, eq. 5-6, to the same effect.) The key at the query's own position is always visible.

Differences from the paper, and how to get its form:

* Reformer shares queries and keys, k = q/|q| (sec. 2): ``--model.projection shared_qk``. By default they are different.
* In Reformer a token attends to itself only if it has no other key, since q·q would outweigh all others (sec. 2,
  "Causal masking for shared-QK attention"): ``avoid_self``. By default the own position is visible.
* Reformer cuts the row, sorted by bucket and position, into chunks of equal length that ignore the boundaries of
  buckets; here chunks are counted within each bucket (below), so that none depends on later tokens.
* Rotations are drawn once from ``seed``, not in every forward pass.

The rounds are described by one number per token and round, its *label*: a query sees a key if the query's label minus
the key's is 0 or 1. In the form "exact" a label is the bucket (doubled, so that labels never differ by 1). In the form
"sorted" the keys of a bucket are divided in order into chunks, and a query sees the chunk of its position and the one
before; earlier keys of a full bucket are not visible, which is the only difference. Chunks are counted from the
first key of a bucket, so they do not depend on later tokens: this form is causal too, whereas the paper's chunks, cut
from the whole sorted row, move with the number of later tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.attention.backends.reference import mix_in_blocks
from regard.attention.call import Call, Out, Plan, allowed, dense_pairs, repeat_kv, weigh
from regard.attention.masks.mask import Mask
from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism
from regard.attention.mechanisms.lsh_tiles import Labels, match, mix_tiles, tileable
from regard.attention.normalizer import SOFTMAX
from regard.attention.score import Bias, Dot
from regard.attention.slots import EMPTY, AnySlots, Pairs, Slots, TokenPosition, position_at
from regard.attention.tiling.tile import Tile
from regard.config import option
from regard.errors import UserError

Form = Literal["exact", "sorted"]
WIDEST = 64  # directions of one hash; more buckets are a pair of hashes
SPAN = 2**32  # above every order
FASTER = 4  # times rounds * chunk: the tokens from which tiles are faster than all pairs


class LSH(Mechanism):
    """Softmax over the keys of the query's buckets and the key at its own position."""

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
        avoid_self: bool = False,
    ):
        super().__init__()
        self.rounds, self.form, self.chunk, self.avoid_self = rounds, form, chunk, avoid_self
        self.score, self.bias, self.dropout = Dot(), bias, dropout
        self.hashes = factors(buckets)
        g = torch.Generator().manual_seed(seed)
        for i, size in enumerate(self.hashes):  # drawn on the CPU: the same on every device and after loading
            rotation = torch.randn(rounds, width, size // 2, generator=g, device="cpu")
            self.register_buffer(f"rotation_{i}", rotation, persistent=False)

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if self.form == "sorted" and isinstance(keys, Slots) and mask.reach().back is not None:
            raise UserError(
                "lsh in its sorted form counts the keys of a bucket from the first on, and a rolling cache has "
                "overwritten them; set form = exact"
            )
        return super().plan(mask, queries, keys, like=like)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        labels = self.labels(q, k, plan)
        dropout = self.dropout if self.training else 0.0
        call = Call(q, k, v, plan, self.score, SOFTMAX, self.bias, dropout=dropout)
        if self.form == "sorted" and tileable(plan, FASTER * self.rounds * self.chunk):
            return Out(mix_tiles(call, labels, math.prod(self.hashes), self.chunk, self.avoid_self))

        def visible(tile: Tile, pairs: Pairs) -> Tensor:
            return self._visible(plan, pairs, Labels(labels.q[..., tile.rows], labels.k[..., tile.columns[0]]))

        return Out(mix_in_blocks(call, visible))

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        pairs = dense_pairs(plan, q)
        visible = self._visible(plan, pairs, self.labels(q, k, plan))
        return weigh(Call(q, k, k, plan, self.score, SOFTMAX, self.bias), pairs, visible)

    def _visible(self, plan: Plan, pairs: Pairs, labels: Labels) -> Tensor:
        """Allowed pairs that share a bucket in some round, and the query's own position."""
        own = pairs.q.order == pairs.k.order
        k_labels = repeat_kv(labels.k, labels.q.shape[1])
        met = torch.zeros_like(own)
        for r in range(self.rounds):
            met = met | match(labels.q[:, :, r, :, None], k_labels[:, :, r, None, :])
        seen = allowed(plan.mask, pairs)
        if not self.avoid_self:
            return (met | own) & seen
        others = met & seen & ~own
        return others | (own & seen & ~others.any(-1, keepdim=True))

    @torch.no_grad()
    def buckets(self, x: Tensor) -> Tensor:
        """The bucket of each vector x [B, H, N, D] in each round: [B, H, R, N]."""
        with torch.autocast(x.device.type, enabled=False):
            bucket = torch.zeros((), dtype=torch.long, device=x.device)
            for i, size in enumerate(self.hashes):
                rotation = self.get_buffer(f"rotation_{i}")
                turned = x.detach().to(rotation.dtype)[:, :, None] @ rotation
                bucket = bucket * size + torch.cat((turned, -turned), dim=-1).argmax(-1)
        return bucket

    @torch.no_grad()
    def labels(self, q: Tensor, k: Tensor, plan: Plan) -> Labels:
        """The labels of all tokens. A group is a bucket of one document; the groups of empty slots match no other."""
        many = math.prod(self.hashes)
        q_at, k_at = (row_of(slots, q.device) for slots in (plan.queries, plan.keys))
        q_group = torch.where(q_at.segment == EMPTY, -4, self.buckets(q) + many * q_at.segment)
        k_group = torch.where(k_at.segment == EMPTY, -2, self.buckets(k) + many * k_at.segment)
        if self.form == "exact":
            return Labels(2 * q_group, 2 * k_group)
        line = k_group * SPAN + k_at.order  # unique; sorted by bucket, then by order
        line, k_line = line.sort(-1).values, line
        q_line = q_group * SPAN + q_at.order
        first = torch.searchsorted(line, k_group * SPAN)
        rank = torch.searchsorted(line, k_line) - first
        every = repeat_kv(line, q.shape[1])
        before = torch.searchsorted(every, q_line, right=True) - torch.searchsorted(every, q_group * SPAN)
        stride = plan.keys.length // self.chunk + 2  # more than the chunks of any bucket
        newest = (before - 1).clamp(min=0)
        return Labels(q_group * stride + newest // self.chunk, k_group * stride + rank // self.chunk)


def row_of(slots: AnySlots, device: torch.device) -> TokenPosition:
    """The positions of all slots, [B|1, 1, 1, N]."""
    rows = torch.arange(slots.rows, device=device)[:, None, None, None]
    return position_at(slots, rows, torch.arange(slots.length, device=device)[None, None, None])


def factors(buckets: int) -> tuple[int, ...]:
    """The sizes of the hashes whose product numbers the buckets.

    One hash costs a product per direction, which for N/chunk buckets would be quadratic; two hashes of about √buckets
    directions distinguish as many buckets (as in the paper's code).

    >>> factors(16), factors(1024), factors(70)
    ((16,), (32, 32), (10, 8))
    """
    if buckets <= WIDEST:
        return (buckets,)
    one = even(math.sqrt(buckets))
    return one, even(buckets / one)


def even(number: float) -> int:
    """The least even number that is at least ``number``."""
    return 2 * math.ceil(number / 2)


@dataclass(frozen=True)
class LSHConfig(AttentionConfig, kind="lsh"):
    """Attention over keys of similar direction, found by hashing."""

    buckets: int | None = option(None, "buckets per round, an even number (default: one per chunk of the context)")
    rounds: int = option(4, "number of hashes", least=1)
    chunk: int = option(64, "keys per chunk of a bucket in the sorted form", least=1)
    form: Literal["auto", "exact", "sorted"] = option(
        "auto",
        "exact: all keys of a bucket, in quadratic time; sorted: two chunks of it, in O(n log n); "
        "auto: sorted for contexts of 4 * rounds * chunk tokens or more, where it is faster",
    )
    avoid_self: bool = option(False, "a token attends to itself only if it has no other key, as in Reformer")
    seed: int = option(0, "seed of the random rotations")

    def check(self) -> None:
        super().check()
        if self.buckets is not None and (self.buckets < 2 or self.buckets % 2):
            raise ValueError(f"buckets must be an even number, 2 or more, not {self.buckets}")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        if spec.backend not in ("auto", "reference", "blocked"):
            raise UserError(f"lsh cannot run on the backend {spec.backend!r}; set backend = auto")
        buckets = even(spec.context / self.chunk) if self.buckets is None else self.buckets
        form = self.form
        if form == "auto":  # by the context, not by the text at hand: training and decoding must agree
            form = "sorted" if spec.context >= FASTER * self.rounds * self.chunk else "exact"
        options = {"form": form, "chunk": self.chunk, "bias": spec.bias, "dropout": spec.dropout}
        return LSH(spec.head_width, buckets, self.rounds, self.seed, avoid_self=self.avoid_self, **options)
