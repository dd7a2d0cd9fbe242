"""Test images for models that read them: claims are about tokens, and a token stands for a patch."""

import math

import torch
from torch import Tensor

from regard.models.base import ImageEncoder
from regard.models.device import parameter_device
from regard.nn.patches import joined

PATCHES = 64  # different ones
SEED = 11


def pictures(model: ImageEncoder, tokens: Tensor) -> Tensor:
    """Images [B, M, Y, X] of random patches, the same one for the same token of ``tokens`` [B, N].

    The grid is as square as N allows, so most lengths are images of another resolution than in training.
    """
    generator = torch.Generator().manual_seed(SEED)
    weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    book = torch.randn(PATCHES, model.channels * model.patch**2, generator=generator)
    count = tokens.shape[1]
    rows = max(n for n in range(1, math.isqrt(count) + 1) if count % n == 0)
    images = joined(book.to(parameter_device(model))[tokens % PATCHES], count // rows, model.channels)
    return images.to(weight.dtype)
