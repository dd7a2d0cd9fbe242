"""Boxes as (center column, center row, width, height): their overlap, as a measure and as a loss."""

import torch
from torch import Tensor


def corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The upper left and the lower right corners [..., 2] of boxes [..., 4]."""
    center, size = boxes.split(2, dim=-1)
    return center - size / 2, center + size / 2


def overlap(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """The intersection over union and its generalized form, of boxes [..., 4] with broadcast shapes.

    Rezatofighi et al. 2019, algorithm 1: the union's share of the smallest box around both is added, less 1.

    >>> overlap(torch.tensor([1.0, 1, 2, 2]), torch.tensor([2.0, 1, 2, 2]))[0]
    tensor(0.3333)
    """
    (low, high), (left, right) = corners(one), corners(two)
    inside = (torch.minimum(high, right) - torch.maximum(low, left)).clamp(min=0).prod(-1)
    union = one[..., 2:].prod(-1) + two[..., 2:].prod(-1) - inside
    around = (torch.maximum(high, right) - torch.minimum(low, left)).clamp(min=0).prod(-1)
    iou = inside / union.clamp(min=1e-9)
    return iou, iou + union / around.clamp(min=1e-9) - 1
