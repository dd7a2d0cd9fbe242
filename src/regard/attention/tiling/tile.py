"""One rectangle of the score matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.call import Call, Plan, allowed
from regard.attention.masks.mask import Mask
from regard.attention.slots import Pairs, make_pairs


class Tile(NamedTuple):
    """A block of queries and the ranges of keys that they read, each a slice of indices."""

    mask: Mask
    rows: slice
    columns: tuple[slice, ...]
    whole: bool = False  # every pair is allowed: no mask is needed
    visible: Tensor | None = None  # [B|1, 1, q, k], the allowed pairs; None: whole, or not stored

    @property
    def elements(self) -> int:
        """The number of scores of one head and batch row."""
        return length(self.rows) * sum(map(length, self.columns))

    def pairs(self, plan: Plan, *, heads: int, batch: int, device: torch.device) -> Pairs:
        """The pairs of the tile, broadcastable to [B, H, q, k]."""
        part = {"rows": self.rows, "columns": self.columns}
        return make_pairs(plan.queries, plan.keys, heads=heads, device=device, batch=batch, **part)

    def allowed(self, plan: Plan, device: torch.device) -> Tensor:
        """Which pairs of the tile are allowed, [B|1, 1, q, k]."""
        if self.visible is not None:
            return self.visible
        return allowed(self.mask, self.pairs(plan, heads=1, batch=plan.rows, device=device))

    def keys(self, x: Tensor) -> Tensor:
        """Of keys or values [B, G, K, D] those of the tile."""
        pieces = [x[:, :, piece] for piece in self.columns]
        return torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]

    def cut(self, call: Call) -> Call:
        """The call with the queries, keys and values of the tile."""
        return call._replace(q=call.q[:, :, self.rows], k=self.keys(call.k), v=self.keys(call.v))


def length(piece: slice) -> int:
    """The number of indices in a slice with a start and a stop."""
    return len(range(piece.start, piece.stop, piece.step or 1))
