"""Backward passes written by hand equal autograd's, and the oneDNN products equal PyTorch's own."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from regard.nn.feedforward import FeedForward, SquaredFeedForward
from regard.nn.fused.ops import relu_squared, rms_norm, rotate
from regard.nn.linear import AVAILABLE, Linear, suits


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def test_gradients_are_the_finite_differences():
    torch.manual_seed(0)
    x, gain, angle = random(3, 5, 2, 8), random(8), torch.randn(1, 5, 1, 4, dtype=torch.float64)
    assert gradcheck(relu_squared, x)
    assert gradcheck(lambda x, g: rms_norm(x, g, 1e-6), (x, gain))
    assert gradcheck(lambda x: rotate(x, angle.cos(), angle.sin()), x)


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8), (2, 3, 4, 8)])
def test_values_are_the_formulas(shape):
    torch.manual_seed(0)
    x, gain = random(*shape), random(8)
    torch.testing.assert_close(relu_squared(x), x.clamp(min=0) ** 2)
    torch.testing.assert_close(rms_norm(x, gain, 1e-6), F.rms_norm(x, (8,), gain, 1e-6))
    strided = random(*shape[:-1], 24)[..., 8:16]  # a slice, as heads come out of one product
    torch.testing.assert_close(rms_norm(strided, gain, 1e-6), F.rms_norm(strided, (8,), gain, 1e-6))


def gradients(layer, x, upstream):
    out = layer(x)
    return [out, *torch.autograd.grad(out, [x, *layer.parameters()], upstream)]


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(70, 16), (5, 20, 16), (2, 5, 10, 16)])
def test_products_equal_pytorchs(shape, bias):
    torch.manual_seed(0)
    ours, theirs = Linear(16, 24, bias=bias), torch.nn.Linear(16, 24, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = random(*shape, dtype=torch.float32)
    assert suits(x, ours.weight)
    assert type(ours(x).grad_fn).__name__ == "_ProductBackward"
    upstream = torch.randn(*shape[:-1], 24)
    for one, two in zip(gradients(ours, x, upstream), gradients(theirs, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
def test_the_squared_network_equals_its_parts():
    torch.manual_seed(0)
    ours, parts = SquaredFeedForward(16, 64), FeedForward(16, 64, relu_squared)
    parts.load_state_dict(ours.state_dict())
    x = random(4, 32, 16, dtype=torch.float32)
    assert type(ours(x).grad_fn).__name__ == "_SquaredNetworkBackward"
    upstream = torch.randn(4, 32, 16)
    for one, two in zip(gradients(ours, x, upstream), gradients(parts, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_other_numbers_and_few_rows_go_pytorchs_way():
    layer = Linear(16, 24)
    assert not suits(torch.randn(3, 16), layer.weight)
    assert not suits(torch.randn(100, 16).double(), layer.weight.double())
    assert not suits(torch.randn(100, 16, device="meta"), layer.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits(torch.randn(100, 16), layer.weight)


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
def test_one_row_through_a_large_matrix_equals_pytorchs():
    """Decoding: a single token, without and with gradients."""
    torch.manual_seed(0)
    ours, theirs = Linear(512, 300), torch.nn.Linear(512, 300)
    theirs.load_state_dict(ours.state_dict())
    x = random(1, 1, 512, dtype=torch.float32)
    assert suits(x, ours.weight)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    upstream = torch.randn(1, 1, 300)
    for one, two in zip(gradients(ours, x, upstream), gradients(theirs, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
