"""Patches: cutting loses nothing, and a linear map of patches is a convolution with the patch as stride."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F

from regard.errors import UserError
from regard.nn.patches import PatchEmbedding, cut, joined

few = st.integers(1, 4)


@given(few, few, few, few, few, few)
def test_cut_patches_join_to_the_same_image(
    batch: int, channels: int, patch: int, rows: int, columns: int, seed: int
) -> None:
    shape = (batch, channels, rows * patch, columns * patch)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    flat = cut(images, patch)
    assert flat.shape == (batch, rows * columns, channels * patch * patch)
    assert torch.equal(joined(flat, columns, channels), images)
    row, column = rows - 1, columns // 2
    piece = images[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
    assert torch.equal(flat[:, row * columns + column], piece.flatten(1))


@given(few, few, few, few, few)
def test_a_linear_map_of_patches_is_a_strided_convolution(
    channels: int, patch: int, rows: int, columns: int, seed: int
) -> None:
    """Values, and the gradients of the image and of the weights."""
    torch.manual_seed(seed)
    layer = PatchEmbedding(patch, channels, 5).double()
    images = torch.randn(2, channels, rows * patch, columns * patch, dtype=torch.float64, requires_grad=True)
    kernel = layer.project.weight.unflatten(1, (channels, patch, patch))
    want = F.conv2d(images, kernel, layer.project.bias, stride=patch).flatten(2).mT
    found = layer(images)
    torch.testing.assert_close(found, want)
    upstream = torch.randn_like(want)
    inputs = (images, layer.project.weight, layer.project.bias)
    for one, other in zip(
        torch.autograd.grad(found, inputs, upstream), torch.autograd.grad(want, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (3, 8, 8), (2, 3, 9, 8), (2, 3, 8, 6), (2, 3, 0, 8)])
def test_an_image_that_cannot_be_cut_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"reads images of shape \[B, 3, Y, X\]|cannot be cut into patches of 4 x 4"):
        PatchEmbedding(4, 3, 5).grid(torch.zeros(shape))
