"""FLOPs per token, which training, the report and `regard describe` count by one function."""

from __future__ import annotations

import pytest

from regard.attention import WindowConfig
from regard.models import PRESETS, GPTConfig, TransformerConfig, describe, flops_per_token

SIZES = {"vocabulary": 50, "layers": 2, "heads": 2, "width": 16}


def flops(context: int, **parts: object) -> float:
    return flops_per_token(GPTConfig(**{**SIZES, "context": context, **parts}).build())


def test_flops_count_what_is_multiplied() -> None:
    tied = flops(8, qk_norm=False, ngrams=2)
    block = 16 * 48 + 16 * 16 + 2 * 16 * 64
    attention = 12 * 2 * 16 * 4.5  # a causal mask over 8 tokens lets a query see 4.5 keys
    assert tied == 6 * (2 * block + 50 * 16) + attention
    assert flops(8, qk_norm=False, tied=False) == tied


def test_flops_of_short_sentences_and_of_windows() -> None:
    window = WindowConfig(size=8)
    assert flops(4096) > 5 * flops(64)
    assert flops(4096, attention=window) < 1.1 * flops(64, attention=window)
    # The context of a translation model only limits its sentences: a longer one costs nothing.
    short, long = (TransformerConfig(context=c, vocabulary=50, layers=2, heads=2, width=16).build() for c in (32, 4096))
    assert flops_per_token(short) == flops_per_token(long)


def test_each_layer_counts_with_its_own_mask() -> None:
    """Three layers with a window and one that sees everything."""
    parts: dict[str, object] = {"layers": 4, "attention": WindowConfig(size=8)}
    few, all_keys = flops(1024, **parts), flops(1024, layers=4)
    assert flops(1024, **parts, global_every=4) == pytest.approx((3 * few + all_keys) / 4)


def test_a_repeated_block_counts_each_time_it_runs() -> None:
    assert flops(8, layers=4, repeat=2) == flops(8, layers=4)


@pytest.mark.parametrize("parts", [{}, {"attention": WindowConfig(size=8)}, {"ngrams": 2, "repeat": 2}])
def test_describe_counts_as_training_does(parts: dict[str, object]) -> None:
    config = GPTConfig(**{**SIZES, "context": 512, **parts})
    assert describe(config)["flops_per_token"] == round(flops_per_token(config.build()))


def test_flops_of_gpt2() -> None:
    """Six per weight of the matrices, and of 1,024 tokens a query sees 512.5 on average."""
    matrices = 12 * 12 * 768**2 + 50_257 * 768
    assert describe(PRESETS["gpt2"])["flops_per_token"] == 6 * matrices + 12 * 12 * 768 * 512.5
