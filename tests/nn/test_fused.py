"""Every fast path equals the readable layer, forward and backward; ``install`` keeps names, hooks and copies."""

import copy

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from regard.config import load
from regard.models import GPTConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import FeedForward, ReLUSquared
from regard.nn.fused import install, onednn
from regard.nn.fused.onednn import AVAILABLE, OneDNNLinear, product, suits, weight_gradient
from regard.nn.fused.ops import FusedReLUSquared, FusedRMSNorm, FusedRotation
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.position import Rotary, RotaryRotation


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def test_gradients_are_the_finite_differences():
    torch.manual_seed(0)
    x, gain, angle = random(3, 5, 2, 8), random(8), torch.randn(1, 5, 1, 4, dtype=torch.float64)
    norm = FusedRMSNorm(8).double()
    assert gradcheck(FusedReLUSquared(), x)
    assert gradcheck(lambda x, gain: torch.func.functional_call(norm, {"gain": gain}, (x,)), (x, gain))
    assert gradcheck(FusedRotation(angle.cos(), angle.sin()).apply, x)


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8), (2, 3, 4, 8)])
def test_values_are_the_formulas(shape):
    torch.manual_seed(0)
    x, norm = random(*shape), FusedRMSNorm(8).double()
    torch.nn.init.normal_(norm.gain)
    torch.testing.assert_close(FusedReLUSquared()(x), x.clamp(min=0) ** 2)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (8,), norm.gain, 1e-6))
    strided = random(*shape[:-1], 24)[..., 8:16]  # a slice, as heads come out of one product
    torch.testing.assert_close(norm(strided), F.rms_norm(strided, (8,), norm.gain, 1e-6))
    angle = torch.randn(4, dtype=torch.float64)
    ours, formula = FusedRotation(angle.cos(), angle.sin()), RotaryRotation(angle.cos(), angle.sin())
    torch.testing.assert_close(ours.apply(strided), formula.apply(strided))


def gradients(layer, x, upstream):
    out = layer(x)
    return [out, *torch.autograd.grad(out, [x, *layer.parameters()], upstream)]


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(70, 16), (5, 20, 16), (2, 5, 10, 16)])
def test_products_equal_pytorchs(shape, bias):
    torch.manual_seed(0)
    ours, theirs = OneDNNLinear(16, 24, bias=bias), torch.nn.Linear(16, 24, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = random(*shape, dtype=torch.float32)
    assert suits(x, ours.weight)
    assert type(ours(x).grad_fn).__name__ == "_ProductBackward"
    upstream = torch.randn(*shape[:-1], 24)
    for one, two in zip(gradients(ours, x, upstream), gradients(theirs, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("rows", [(70,), (2600,), (20, 130)])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 96), (96, 48), (64, 64)])
def test_weight_gradients_are_those_in_double_precision(rows, inputs, outputs):
    torch.manual_seed(0)
    layer = OneDNNLinear(inputs, outputs)
    x, upstream = random(*rows, inputs, dtype=torch.float32), torch.randn(*rows, outputs)
    readable = Linear(inputs, outputs).double()
    readable.load_state_dict(layer.state_dict())
    layer(x).backward(upstream)
    readable(x.detach().double()).backward(upstream.double())
    expected = readable.weight.grad
    assert expected is not None
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert layer.weight.grad.is_contiguous()  # optimizers go through weights and gradients side by side


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 96), (96, 48)])
def test_large_weight_gradients_are_products_of_onednn(inputs, outputs, monkeypatch):
    called = []
    monkeypatch.setattr(onednn, "product", lambda *given: called.append(1) or product(*given))
    for rows in (70, 2600):
        weight_gradient(torch.randn(rows, outputs), torch.randn(rows, inputs))
        assert len(called) == (rows > 70)


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
def test_the_squared_network_equals_its_parts():
    torch.manual_seed(0)
    parts = FeedForward(16, 64, ReLUSquared())
    ours = copy.deepcopy(parts)
    install(ours)
    x = random(4, 32, 16, dtype=torch.float32)
    assert type(ours(x).grad_fn).__name__ == "_SquaredNetworkBackward"
    upstream = torch.randn(4, 32, 16)
    for one, two in zip(gradients(ours, x, upstream), gradients(parts, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("change", ["hook", "activation", "dropout", "forward"])
def test_a_modified_layer_is_called(change):
    network = FeedForward(16, 64, ReLUSquared(), dropout=0.5 if change == "dropout" else 0.0)
    install(network)
    calls = []
    if change == "hook":
        network.up.register_forward_hook(lambda *_: calls.append(1))
    elif change == "activation":
        network.activation = torch.nn.Tanh()
    elif change == "forward":
        setattr(network.down, "forward", lambda x: x[..., :16])  # noqa: B010
    x = random(4, 32, 16, dtype=torch.float32)
    out = network(x)
    assert "_SquaredNetworkBackward" not in type(out.grad_fn).__name__
    assert bool(calls) == (change == "hook")
    if change == "activation":
        torch.testing.assert_close(out, F.linear(torch.tanh(network.up(x)), network.down.weight))


def plain(model):
    """The same model with every fast path taken out."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module).__module__.startswith("regard.nn.fused"):
            kinds = (kind for kind in type(module).__mro__ if not kind.__module__.startswith("regard.nn.fused"))
            module.__class__ = next(kinds)
    return model


@pytest.mark.parametrize(
    "parts",
    [{}, {"norm": "layer", "position": "learned", "feedforward": "swiglu"}, {"bias": True}, {"feedforward": "moe"}],
    ids=str,
)
def test_a_built_model_equals_the_readable_one(parts):
    torch.manual_seed(0)
    ours = load(GPTConfig, {"zero_init": False, "layers": 2, **parts}).build()
    readable = plain(ours)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in readable.named_parameters()]
    assert any(type(module).__module__.startswith("regard.nn.fused") for module in ours.modules())
    tokens, found = torch.randint(65, (4, 32)), []
    for model in (ours, readable):
        logits = model(tokens)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * float(two.detach().abs().max()))


@pytest.mark.parametrize("capacity", [None, 1.0])
@pytest.mark.parametrize("activation", ["relu2", "swiglu", "bilinear"])
def test_fused_experts_equal_the_readable_ones(activation, capacity):
    torch.manual_seed(0)
    readable = MoEConfig(experts=4, shared=1, activation=activation, capacity=capacity).build(16, bias=True).double()
    ours = copy.deepcopy(readable)
    install(ours)
    assert type(ours) is not type(readable)
    for training in (True, False):
        x, upstream = random(3, 7, 16), torch.randn(3, 7, 16, dtype=torch.float64)
        for one, two in zip(
            gradients(ours.train(training), x, upstream), gradients(readable.train(training), x, upstream), strict=True
        ):
            torch.testing.assert_close(one, two)


def test_install_says_what_it_replaced_and_why_not_elsewhere():
    network = torch.nn.Sequential(RMSNorm(8), FeedForward(8, 16, F.gelu), Rotary(8))
    found = {one.name: one for one in install(network)}
    assert (found["0"].fast, found["2"].fast) == ("FusedRMSNorm", "FusedRotary")
    if AVAILABLE:
        assert str(found["1"]) == "1: FeedForward -> unchanged (only the squared ReLU has a fused network)"
    assert not install(network)[1:] or all(one.fast is None for one in install(network))
    keys = set(network.state_dict())
    assert keys == {"0.gain", "1.up.weight", "1.down.weight"}
    assert type(copy.deepcopy(network)[0]) is FusedRMSNorm


def test_outputs_can_be_changed_in_place():
    """As a hook that steers a model does; a view made inside a function could not."""
    model = GPTConfig(layers=1).build()
    out = model.blocks[0].get_submodule("attention.qkv")(torch.randn(4, 32, 128, requires_grad=True))
    out += 1
    logits = model(torch.randint(65, (4, 32)))
    logits[:, -1] += 1
    logits.sum().backward()


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
    ours, theirs = OneDNNLinear(512, 300), torch.nn.Linear(512, 300)
    theirs.load_state_dict(ours.state_dict())
    x = random(1, 1, 512, dtype=torch.float32)
    assert suits(x, ours.weight)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    upstream = torch.randn(1, 1, 300)
    for one, two in zip(gradients(ours, x, upstream), gradients(theirs, x, upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
