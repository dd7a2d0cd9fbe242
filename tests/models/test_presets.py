"""Published sizes, counted on the meta device."""

from __future__ import annotations

import pytest
import torch

from regard.models import PRESETS, GPTConfig, describe

# The weights of the released checkpoints (Radford et al. 2019), to the parameter.
GPT2 = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
# Brown et al. 2020, table 2.1: rounded there.
GPT3 = {
    "gpt3-small": 125e6,
    "gpt3-medium": 350e6,
    "gpt3-large": 760e6,
    "gpt3-xl": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13e9,
    "gpt3-175b": 175e9,
}


def test_every_preset_is_here() -> None:
    assert set(PRESETS) == {"shakespeare", *GPT2, *GPT3, "transformer-base", "transformer-big"}
    assert PRESETS["shakespeare"] == GPTConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible(name: str) -> None:
    PRESETS[name].check()


@pytest.mark.parametrize(("name", "count"), GPT2.items())
def test_gpt2_sizes_are_exact(name: str, count: int) -> None:
    assert describe(PRESETS[name])["parameters"] == count


@pytest.mark.parametrize(("name", "count"), GPT3.items())
def test_gpt3_sizes_are_the_papers(name: str, count: float) -> None:
    assert describe(PRESETS[name])["parameters"] == pytest.approx(count, rel=0.05)


def test_gpt3_is_described_without_allocating_it() -> None:
    """700 GB of weights: only shapes are made."""
    with torch.device("meta"):
        model = PRESETS["gpt3-175b"].build()
    assert all(p.is_meta for p in model.parameters())
    found = describe(PRESETS["gpt3-175b"])
    layers, width = 96, 12_288
    per_layer = 12 * width**2 + 13 * width  # four attention matrices, eight of the feed-forward, biases, two norms
    assert found["parameters_in_blocks"] == layers * per_layer
    assert found["parameters"] == layers * per_layer + 50_257 * width + 2048 * width + 2 * width
    assert found["bytes_float32"] == 4 * found["parameters"]
    assert found["bytes_bfloat16"] == 2 * found["parameters"]
    assert found["cache_elements_per_token"] == 2 * layers * width


def test_a_description_is_of_the_model_that_is_built() -> None:
    config = GPTConfig(layers=2, heads=4, kv_heads=2, width=32, ngrams=2, buckets=100)
    model, found = config.build(), describe(config)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    state = model.start(1, 10)
    assert found["cache_elements_per_token"] == sum(x.numel() for layer in state.layers for x in layer) // 10
    assert found["flops_per_token"] == 6 * found["parameters"] + 12 * 2 * 32 * 256
