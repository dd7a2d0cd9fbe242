"""Augmentation: random changes of training images that leave their class as it is.

Each function takes images [B, M, Y, X] on any device and random numbers in [0, 1) for each of them. What is done to an
image is computed from them on the CPU, so the result is a pure function, and the same on every device up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.data.examples import Uniform

#: What the strength 1 of ``affine`` is at most: a rotation in radians, the logarithm of a scale, a shear.
ROTATION, SCALE, SHEAR = 0.5, 0.3, 0.3


def crop(images: Tensor, random: Uniform, margin: int, fill: float = -1.0) -> Tensor:
    """Shift each image by up to ``margin`` pixels down and across: a crop of the image with a margin of ``fill``.

    ``random`` [B, 2].
    """
    count, channels, rows, columns = images.shape
    padded = F.pad(images, (margin,) * 4, value=fill)
    first = _placed((random * (2 * margin + 1)).astype(np.int64), images)
    down = first[:, 0, None] + torch.arange(rows, device=images.device)  # [B, Y]
    across = first[:, 1, None] + torch.arange(columns, device=images.device)  # [B, X]
    number = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[number, channel, down[:, None, :, None], across[:, None, None, :]]


def flip(images: Tensor, random: Uniform) -> Tensor:
    """Mirror every other image on average, left to right; ``random`` [B]."""
    return torch.where(_placed(random < 0.5, images)[:, None, None, None], images.flip(3), images)


def affine(images: Tensor, random: Uniform, strength: float, fill: float = -1.0) -> Tensor:
    """Rotate, scale and shear each image about its middle, with ``fill`` where it ends; ``random`` [B, 4]."""
    angle, scale, shear, slope = ((2 * random - 1) * strength * [ROTATION, SCALE, SHEAR, SHEAR]).T
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    sheared = np.array([[np.ones_like(shear), shear], [slope, np.ones_like(slope)]])
    matrix = np.einsum("ijb,jkb->bik", rotation, sheared) * np.exp(scale)[:, None, None]
    theta = F.pad(_placed(matrix.astype(np.float32), images), (0, 1))  # [B, 2, 3]: nothing is shifted
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images - fill, grid, align_corners=False) + fill


def color(images: Tensor, random: Uniform, strength: float) -> Tensor:
    """Change brightness, contrast and saturation by up to ``strength``; ``random`` [B, 3]."""
    change = _placed(((2 * random - 1) * strength).astype(np.float32), images)
    brightness, contrast, saturation = change.T[:, :, None, None, None]
    gray, mean = images.mean(1, keepdim=True), images.mean((1, 2, 3), keepdim=True)
    images = images + saturation * (images - gray)
    return (images + contrast * (images - mean) + brightness).clamp(-1, 1)


def recolor(images: Tensor, random: Uniform, share: float) -> Tensor:
    """Replace every channel of a ``share`` of the images by a random mean of all channels; ``random`` [B, 1 + M · M].

    The weights are uniform on the simplex. Forms and what is black, gray or white stay; colors become any other.
    """
    channels = images.shape[1]
    weights = -np.log1p(-random[:, 1:]).reshape(-1, channels, channels)
    weights = weights / weights.sum(2, keepdims=True).clip(1e-12)
    weights = np.where(random[:, 0, None, None] < share, weights, np.eye(channels))
    return torch.einsum("bij,bjyx->biyx", _placed(weights, images).to(images.dtype), images)


def erase(images: Tensor, random: Uniform, share: float, fill: float = 0.0) -> Tensor:
    """Fill a rectangle of a ``share`` of the images (Zhong et al. 2020); ``random`` [B, 5].

    Its area is 2 to 33 % of the image, the ratio of its sides 0.3 to 3.3, as in the paper.
    """
    rows, columns = images.shape[2:]
    area, ratio = 0.02 + 0.31 * random[:, 1], 0.3 * 11.0 ** random[:, 2]
    height = np.clip(np.rint(rows * np.sqrt(area * ratio)), 1, rows)
    width = np.clip(np.rint(columns * np.sqrt(area / ratio)), 1, columns)
    top, left = (rows - height + 1) * random[:, 3] // 1, (columns - width + 1) * random[:, 4] // 1
    height = np.where(random[:, 0] < share, height, 0)
    return images.masked_fill(_rectangles(images, top, top + height, left, left + width), fill)


def mixup(images: Tensor, others: Tensor, weights: NDArray[np.float32]) -> Tensor:
    """Each image times its weight plus another one times the rest (Zhang et al. 2018, eq. 1); ``weights`` [B]."""
    return others.lerp(images, _placed(weights, images)[:, None, None, None])


def cutmix(
    images: Tensor, others: Tensor, weights: NDArray[np.float32], random: Uniform
) -> tuple[Tensor, NDArray[np.float32]]:
    """A rectangle of another image, of 1 - ``weights`` of the area, and the weights that are left (Yun et al. 2019).

    ``random`` [B, 2]: its middle, as in the paper's code, so that a part of it may lie outside.
    """
    rows, columns = images.shape[2:]
    share = np.sqrt(1 - weights.astype(np.float64))
    edges = []
    for side, middle in ((rows, random[:, 0] * rows), (columns, random[:, 1] * columns)):
        edges += [np.clip(np.rint(middle + sign * share * side / 2), 0, side) for sign in (-1, 1)]
    top, bottom, left, right = edges
    kept = (1 - (bottom - top) * (right - left) / (rows * columns)).astype(np.float32)
    return torch.where(_rectangles(images, top, bottom, left, right), others, images), kept


def _rectangles(images: Tensor, *edges: NDArray[np.float64]) -> Tensor:
    """Where each image is inside of its rectangle, [B, 1, Y, X]; ``edges``: top, bottom, left and right, [B] each."""
    top, bottom, left, right = _placed(np.stack(edges).astype(np.int64), images)[:, :, None, None, None]
    down = torch.arange(images.shape[2], device=images.device)[:, None]
    across = torch.arange(images.shape[3], device=images.device)
    return (down >= top) & (down < bottom) & (across >= left) & (across < right)


def _placed(values: NDArray[np.generic], images: Tensor) -> Tensor:
    """``values`` on the device of the images."""
    return torch.from_numpy(values).to(images.device, non_blocking=True)
