"""Quantized linear layers: the bound of the error, exact packing, gradients of the input, tied embeddings, files."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from regard.config import load
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.fused import install
from regard.nn.fused import quantized as fused_quantized
from regard.nn.quantized import (
    Int4Config,
    Int8Config,
    QuantizedEmbedding,
    QuantizedLinear,
    dequantize,
    pack,
    quantize,
    unpack,
)
from regard.runs.tensors import read_tensors, write_tensors

CONFIGS = [Int8Config(), Int4Config(), Int4Config(group=64), Int4Config(group=6)]


@st.composite
def matrices(draw):
    shape = draw(st.integers(1, 9)), draw(st.integers(1, 80))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale, shift = draw(st.sampled_from([1e-30, 1e-4, 0.02, 1.0, 300.0])), draw(st.sampled_from([0.0, 1.0, -40.0]))
    matrix = torch.randn(shape, generator=generator)
    if draw(st.booleans()):
        matrix[:, ::3] = 0
    return matrix * scale + shift * draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_the_error_of_8_bits_is_at_most_half_a_step_of_its_row(weight):
    found = Int8Config().decode(Int8Config().encode(weight), weight.shape[1], torch.float32)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((found - weight).abs() <= step / 2 * (1 + 1e-4) + 1e-37).all()


@settings(max_examples=60, deadline=None)
@given(matrices(), st.sampled_from([2, 6, 32, 64]))
def test_the_error_of_4_bits_is_at_most_half_a_step_of_its_group(weight, group):
    config = Int4Config(group=group)
    found = config.decode(config.encode(weight), weight.shape[1], torch.float32)
    for start in range(0, weight.shape[1], group):
        part = weight[:, start : start + group]
        step = (part.amax(1, keepdim=True) - part.amin(1, keepdim=True)) / 15
        # The scale and the minimum are float16: 11 significant bits, and steps of 2^-24 near zero.
        rounding = part.abs().amax(1, keepdim=True) * 2**-9 + 15 * 2.0**-24
        assert ((found[:, start : start + group] - part).abs() <= step / 2 + rounding).all()


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 2**31))
def test_packing_is_exact(rows, pairs, seed):
    codes = torch.randint(16, (rows, 2 * pairs), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    assert pack(codes).shape == (rows, pairs)
    assert torch.equal(unpack(pack(codes)), codes)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_decoded_weights_are_encoded_without_loss(config):
    torch.manual_seed(0)
    once = config.decode(config.encode(torch.randn(16, 192)), 192, torch.float32)
    again = config.decode(config.encode(once), 192, torch.float32)
    torch.testing.assert_close(again, once, rtol=2**-9, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_output_and_the_gradient_are_those_of_the_decoded_weights(config, bias):
    torch.manual_seed(0)
    linear = nn.Linear(70, 12, bias=bias)
    layer = QuantizedLinear.of(linear, config)
    x = torch.randn(3, 5, 70, requires_grad=True)
    upstream = torch.randn(3, 5, 12)
    expected = F.linear(x, layer.weight, linear.bias)
    torch.testing.assert_close(layer(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    found, wanted = (torch.autograd.grad(out, x, upstream)[0] for out in (layer(x), expected))
    torch.testing.assert_close(found, wanted)
    assert not any(parameter.requires_grad for parameter in layer.parameters())


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_another_type_of_the_model_keeps_the_stored_weights(config):
    torch.manual_seed(0)
    layer = QuantizedLinear.of(nn.Linear(64, 8), config)
    wide = copy.deepcopy(layer).double()
    assert wide.weight.dtype == torch.float64
    torch.testing.assert_close(wide.weight.float(), layer.weight, rtol=0, atol=0)
    assert wide(torch.randn(2, 64, dtype=torch.float64)).dtype == torch.float64


def small(**options):
    sizes = {"vocabulary": 40, "context": 16, "layers": 2, "heads": 4, "width": 32, "zero_init": False}
    return load(GPTConfig, {**sizes, **options})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_a_model_is_quantized_saved_and_loaded(config, tied, tmp_path):
    torch.manual_seed(0)
    model = small(tied=tied).build().eval()
    tokens = torch.randint(40, (2, 16))
    before = model(tokens)
    done = quantize(model, config)
    layers = ("attention.qkv", "attention.out", "feedforward.up", "feedforward.down")
    assert {one.name for one in done} == {"unembed", *(f"blocks.{i}.{layer}" for i in range(2) for layer in layers)}
    assert {one.name: one.kind for one in done}["unembed"] == "int8"  # also with int4
    assert isinstance(model.embed, QuantizedEmbedding) == tied
    after = model(tokens)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, before, rtol=0, atol=0.1)
    write_tensors(tmp_path / "model.safetensors", model.state_dict())
    again = small(tied=tied).build().eval()
    quantize(again, config, empty=True)
    again.load_state_dict(read_tensors(tmp_path / "model.safetensors"))
    torch.testing.assert_close(again(tokens), after, rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_dequantized_it_is_the_same_function(tied):
    torch.manual_seed(0)
    model = small(tied=tied).build().eval()
    tokens = torch.randint(40, (2, 16))
    names = set(model.state_dict())
    quantize(model, Int4Config())
    expected = model(tokens)
    dequantize(model)
    assert set(model.state_dict()) == names
    assert (model.embed.weight is model.unembed.weight) == tied
    torch.testing.assert_close(model(tokens), expected)


def test_large_embeddings_are_quantized_too():
    torch.manual_seed(0)
    model = small(ngrams=2, vocabulary=60).build().eval()
    torch.nn.init.normal_(model.ngrams.tables[0].get_parameter("weight"), std=0.02)
    tokens = torch.randint(40, (2, 16))
    expected = model(tokens)
    done = quantize(model, Int4Config())
    assert "ngrams.tables.0" in [one.name for one in done if one.kind == "int8"]
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=0.1)


def test_a_router_is_kept():
    model = small(feedforward="moe").build()
    done = quantize(model, Int8Config())
    assert done
    assert not [one for one in done if "router" in one.name]


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_weights_that_are_not_finite_are_refused(config):
    linear = nn.Linear(4, 4)
    linear.weight.data[1, 1] = float("nan")
    with pytest.raises(UserError, match="NaN"):
        QuantizedLinear.of(linear, config)


def test_weights_too_large_for_float16_are_refused():
    linear = nn.Linear(4, 4)
    linear.weight.data[1, 1] = 1e5
    with pytest.raises(UserError, match="int8"):
        QuantizedLinear.of(linear, Int4Config())


@settings(max_examples=30, deadline=None)
@given(matrices(), st.integers(1, 5), st.booleans())
def test_few_rows_on_a_cpu_are_the_product_with_the_decoded_weights(weight, rows, fbgemm):
    """The two digits of x are exact to max|x| of the row / 15,876; without FBGEMM the weights are decoded."""
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight.data.copy_(weight)
    quantized = QuantizedLinear.of(linear, Int8Config())
    layer = nn.Sequential(quantized)
    assert [one.fast for one in install(layer)] == ["FusedQuantizedLinear"]
    x = torch.randn(1, rows, weight.shape[1], generator=torch.Generator().manual_seed(1))
    x[..., ::5] *= 20
    x *= 10.0 ** torch.arange(rows)[:, None]  # each row has its own digits
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_quantized, "FBGEMM", fbgemm and fused_quantized.FBGEMM)
        found, expected = layer(x), F.linear(x, quantized.weight, quantized.bias)
        top = x.abs().amax(-1, keepdim=True)
        bound = top / 15_000 * quantized.weight.abs().sum(1) + 1e-5 * expected.abs() + 1e-6
        assert ((found - expected).abs() <= bound).all()
        assert torch.equal(layer(torch.zeros_like(x)), linear.bias.expand(1, rows, -1))
