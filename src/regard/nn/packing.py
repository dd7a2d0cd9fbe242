"""Packed rows and last tokens, for models without attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention import Packed


def documents(slots: Packed) -> tuple[Tensor, Tensor]:
    """For every token of packed rows [B, N]: the index of its document, over all rows, and its position in it.

    ``rows[document, place] = packed`` gives each document a row, and ``rows[document, place]`` packs them again. The
    padding of a row counts as one more document.

    >>> documents(Packed.of([[2, 1], [3]]))
    (tensor([[0, 0, 1],
            [2, 2, 2]]), tensor([[0, 1, 0],
            [0, 1, 2]]))
    """
    segment = slots.segment
    place = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    first = torch.ones_like(segment, dtype=torch.bool)
    first[:, 1:] = segment[:, 1:] != segment[:, :-1]
    document = first.flatten().cumsum(0).view_as(segment) - 1
    return document, place - torch.where(first, place, 0).cummax(dim=1).values


def latest(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x [B, T, .] to [B, 1, .]: the values at each row's last real token."""
    if lengths is None:
        return x[:, -1:]
    return x[torch.arange(x.shape[0], device=x.device), (lengths - 1).clamp(min=0)][:, None]
