"""Augmentation: random changes of training images that leave their class as it is.

Each function takes images [B, M, Y, X] and random numbers in [0, 1) for each of them, so the result is a pure function.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.data.examples import Uniform

Floats = NDArray[np.float32]


def crop(images: Floats, random: Uniform, margin: int, fill: float = -1.0) -> Floats:
    """Shift each image by up to ``margin`` pixels down and across: a crop of the image with a margin of ``fill``.

    ``random`` [B, 2].
    """
    rows, columns = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)), constant_values=fill)
    first = (random * (2 * margin + 1)).astype(np.int64)
    down = first[:, 0, None] + np.arange(rows)  # [B, Y]
    across = first[:, 1, None] + np.arange(columns)  # [B, X]
    number = np.arange(len(images))[:, None, None, None]
    channel = np.arange(images.shape[1])[None, :, None, None]
    return padded[number, channel, down[:, None, :, None], across[:, None, None, :]]


def flip(images: Floats, random: Uniform) -> Floats:
    """Mirror every other image on average, left to right; ``random`` [B]."""
    return np.where((random < 0.5)[:, None, None, None], images[..., ::-1], images)


def erase(images: Floats, random: Uniform, share: float, fill: float = 0.0) -> Floats:
    """Fill a rectangle of a ``share`` of the images (Zhong et al. 2020); ``random`` [B, 5].

    Its area is 2 to 33 % of the image, the ratio of its sides 0.3 to 3.3, as in the paper.
    """
    rows, columns = images.shape[2:]
    area, ratio = 0.02 + 0.31 * random[:, 1], 0.3 * 11.0 ** random[:, 2]
    height = np.clip(np.rint(rows * np.sqrt(area * ratio)), 1, rows)
    width = np.clip(np.rint(columns * np.sqrt(area / ratio)), 1, columns)
    top, left = (rows - height + 1) * random[:, 3] // 1, (columns - width + 1) * random[:, 4] // 1
    down, across = np.arange(rows)[None, :, None], np.arange(columns)[None, None, :]
    inside = (down >= top[:, None, None]) & (down < (top + height)[:, None, None])
    inside = inside & (across >= left[:, None, None]) & (across < (left + width)[:, None, None])  # [B, Y, X]
    inside &= (random[:, 0] < share)[:, None, None]
    return np.where(inside[:, None], np.float32(fill), images)


def mixup(images: Floats, others: Floats, weights: Floats) -> Floats:
    """Each image times its weight plus another one times the rest (Zhang et al. 2018, eq. 1); ``weights`` [B]."""
    weight = weights[:, None, None, None]
    return (weight * images + (1 - weight) * others).astype(np.float32, copy=False)
