"""The least and greatest order, segment and phase of each block of slots, from which verdicts on blocks follow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.mask import Mask
from regard.attention.masks.summary import BlockBounds, BlockVerdict
from regard.attention.slots import AnySlots


class SlotBounds(NamedTuple):
    """Per block of slots, [B|1, groups, blocks]; ``whole`` [blocks] is False for a short last block."""

    low: Tensor  # order
    high: Tensor
    first: Tensor  # segment
    last: Tensor
    phases: tuple[Tensor, Tensor] | None  # None: they have several axes
    whole: Tensor


def bounds(slots: AnySlots, device: torch.device, size: int, starts: Tensor | None = None, step: int = 1) -> SlotBounds:
    """Blocks of ``size`` slots, each ``step`` from the next, in groups that begin at ``starts`` (None: one, at 0)."""
    starts = torch.zeros(1, dtype=torch.long, device=device) if starts is None else starts
    blocks = -(-slots.length // (size * step))
    index = starts[:, None, None] + step * torch.arange(blocks * size, device=device).view(blocks, size)
    whole = (index < slots.length).all(-1).all(0)
    last = starts + (slots.length - 1 - starts).clamp(min=0) // step * step  # repeated, it moves no extreme
    index = torch.minimum(index, last[:, None, None]).clamp(max=slots.length - 1)  # a group may be empty
    rows = torch.arange(slots.rows, device=device)[:, None, None, None]
    at = slots.at(rows, index[None])
    order, segment = (x.expand(slots.rows, *index.shape) for x in (at.order, at.segment))
    phase = at.phase if at.phase.ndim == 4 else None
    phases = None if phase is None else (phase.amin(-1), phase.amax(-1))
    return SlotBounds(order.amin(-1), order.amax(-1), segment.amin(-1), segment.amax(-1), phases, whole)


def layout(mask: Mask, queries: SlotBounds, keys: SlotBounds) -> BlockVerdict:
    """For every block of queries and of keys of the same group, [B|1, groups, query blocks, key blocks]."""

    def down(pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        return None if pair is None else (pair[0][..., None], pair[1][..., None])

    def across(pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        return None if pair is None else (pair[0][..., None, :], pair[1][..., None, :])

    q_low, q_high, q_first, q_last = (x[..., None] for x in queries[:4])
    k_low, k_high, k_first, k_last = (x[..., None, :] for x in keys[:4])
    may, must = mask.verdict(BlockBounds(q_low, q_high, k_low, k_high, down(queries.phases), across(keys.phases)))
    may = may & (q_first <= k_last) & (k_first <= q_last) & (q_last >= 0) & (k_last >= 0)
    one = (q_first == q_last) & (k_first == k_last) & (q_first == k_first) & (q_first >= 0)
    return BlockVerdict(may, must & one & queries.whole[:, None] & keys.whole)
