"""What models of images have in common: the contract of an ``ArrayEncoder`` whose parts are patches."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from regard.models.base import ArrayEncoder, Model
from regard.nn.patches import joined

PATCHES = 64  # different ones, for tests
SEED = 11


class ImageEncoder(ArrayEncoder):
    """Images [B, M, Y, X] (M channels, Y rows, X columns) to features [B, N, C], each from the whole image."""

    channels: int
    patch: int  # rows and columns of a patch, in pixels; the sides of an image are multiples of it

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features [B, N, C]: those of ``before`` tokens, then of the patches row by row."""

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor]:
        """Images of random patches; the grid is as square as N allows."""
        return (random_images(self, tokens, self.channels, self.patch),)

    def places(self, images: Tensor) -> list[str]:
        """The row and column of each patch, from 1 on."""
        rows, columns = (side // self.patch for side in images.shape[2:])
        patches = [f"{row},{column} " for row in range(1, rows + 1) for column in range(1, columns + 1)]
        return ["class "] * self.before + patches


def random_images(model: Model, tokens: Tensor, channels: int, patch: int) -> Tensor:
    """Images [B, M, Y, X] of random patches, equal ones for equal ``tokens`` [B, N], like the weights of ``model``."""
    weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    generator = torch.Generator().manual_seed(SEED)
    book = torch.randn(PATCHES, channels * patch**2, generator=generator).to(weight)
    count = tokens.shape[1]
    rows = max(n for n in range(1, math.isqrt(count) + 1) if count % n == 0)
    return joined(book[tokens % PATCHES], count // rows, channels)
