"""Attention rollout: the weight of each token on each other one through all layers (Abnar & Zuidema 2020, sec. 3).

Ã_l = (W_l + I)/2 with W_l the mean over heads, where the identity is the residual path; the rollout is Ã_L ⋯ Ã_1.
Long texts are pooled: rows are means of neighbors, columns their sums, so that a row still sums to one. The product is
computed from the last layer to the first, strip by strip, and no N×N matrix is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.look.capture.strips import strip, strip_ranges
from regard.look.capture.trace import Attention
from regard.look.statistics.tiles import cells


@torch.no_grad()
def rollout(last_first: Iterable[Attention], size: int = 256) -> NDArray[np.float32]:
    """[up to size, up to size], from the self-attentions of one stack of layers, the last one first."""
    through, each, count, length = torch.empty(0), 1, 1, 0
    for attention in last_first:
        if not length:
            length = attention.q.shape[2]
            each, count = cells(length, size)
            through = _means(length, each).to(attention.q.device)  # [count, length]
        heads, before = range(attention.q.shape[1]), through / 2
        for part in strip_ranges(attention):
            weights = torch.stack([strip(attention, head, part).weights[0].float() for head in heads]).mean(0)
            before[:, part.columns].add_(through[:, part.rows] @ weights, alpha=0.5)
        through = before
    return F.pad(through, (0, count * each - length)).unflatten(1, (count, each)).sum(-1).cpu().numpy()


def _means(length: int, each: int) -> Tensor:
    """The matrix [groups, length] that averages ``each`` neighbors."""
    place = torch.arange(length)
    group = place // each
    matrix = torch.zeros(int(group[-1]) + 1, length)
    matrix[group, place] = 1 / group.bincount()[group].float()
    return matrix
