"""Scalings of rotary positions: those of `transformers`, and the laws that they keep."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from positions_kit import CONTEXT, SCALINGS, seeds
from torch import Tensor

from regard.nn.positions.position import Rotary
from regard.nn.positions.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
    frequencies,
)

CPU = torch.device("cpu")
sizes = st.integers(2, 64).map(lambda half: 2 * half)
bases = st.sampled_from([10_000.0, 500_000.0, 1e6, 100.0])
factors = st.sampled_from([1.0, 1.5, 4.0, 32.0])
contexts = st.sampled_from([64, 256, 4096, 8192])


def theirs(config: dict[str, Any], base: float, width: int, context: int, **more: Any) -> tuple[Tensor, float]:
    """Frequencies and attention factor as `transformers` has them."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = transformers.LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        max_position_embeddings=context,
        rope_parameters={"rope_theta": base, **config},
    )
    return ROPE_INIT_FUNCTIONS[config["rope_type"]](made, CPU, **more)


def same(ours: ScalingConfig, wanted: tuple[Tensor, float], width: int, base: float, context: int) -> None:
    got = ours.frequencies(width, base, context, CPU)
    torch.testing.assert_close(got, wanted[0].double(), rtol=1e-5, atol=0)
    assert ours.strength() == pytest.approx(wanted[1])


@settings(max_examples=10)
@given(sizes, bases, factors, contexts, st.integers(1, 40_000))
def test_scalings_are_those_of_transformers(width: int, base: float, factor: float, context: int, length: int) -> None:
    common = {"factor": factor, "original_max_position_embeddings": context}
    linear = theirs({"rope_type": "linear", **common}, base, width, context)
    same(LinearScalingConfig(factor), linear, width, base, context)
    stretched = theirs({"rope_type": "dynamic", "factor": 1.0}, base, width, context, seq_len=round(context * factor))
    same(NTKScalingConfig(factor), stretched, width, base, context)
    dynamic = theirs({"rope_type": "dynamic", "factor": factor}, base, width, context, seq_len=length)
    same(DynamicScalingConfig(factor, length), dynamic, width, base, context)
    yarn = theirs({"rope_type": "yarn", **common}, base, width, round(context * factor))
    same(YarnScalingConfig(factor), yarn, width, base, context)
    told = {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.25}
    other = theirs({"rope_type": "yarn", **common, **told}, base, width, round(context * factor))
    same(YarnScalingConfig(factor, 8.0, 2.0, context, 1.25), other, width, base, 7)
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama = theirs({"rope_type": "llama3", **common, **ends}, base, width, round(context * factor))
    same(Llama3ScalingConfig(factor), llama, width, base, context)


@given(sizes, bases, contexts)
def test_a_factor_of_one_changes_nothing(width: int, base: float, context: int) -> None:
    plain = frequencies(width, base, CPU)
    for config in (LinearScalingConfig, NTKScalingConfig, YarnScalingConfig, Llama3ScalingConfig, DynamicScalingConfig):
        made = config(factor=1.0)
        torch.testing.assert_close(made.frequencies(width, base, context, CPU), plain)
        assert made.strength() == 1
    grown = DynamicScalingConfig(factor=3.0, length=context)  # no longer than trained
    torch.testing.assert_close(grown.frequencies(width, base, context, CPU), plain)


@given(sizes, bases, st.sampled_from([2.0, 8.0]), contexts)
def test_which_pairs_are_slowed(width: int, base: float, factor: float, context: int) -> None:
    plain, linear = (c.frequencies(width, base, context, CPU) for c in (NoScalingConfig(), LinearScalingConfig(factor)))
    torch.testing.assert_close(linear, plain / factor)
    ntk = NTKScalingConfig(factor).frequencies(width, base, context, CPU)
    assert ntk[0] == plain[0]
    torch.testing.assert_close(ntk[-1], linear[-1])
    rounds = context * plain / (2 * math.pi)
    for config, fast in ((YarnScalingConfig(factor), 32.0), (Llama3ScalingConfig(factor), 4.0)):
        got = config.frequencies(width, base, context, CPU)
        assert (got >= linear * (1 - 1e-12)).all()
        assert (got <= plain * (1 + 1e-12)).all()
        torch.testing.assert_close(got[rounds > fast], plain[rounds > fast])
    torch.testing.assert_close(got[rounds < 1], linear[rounds < 1])


@given(seeds, st.sampled_from(sorted(SCALINGS)), st.integers(0, 10_000))
def test_scaled_rotations_see_relative_phase_only(seed: int, name: str, shift: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rotary = Rotary(8, scaling=SCALINGS[name], context=CONTEXT)
    q, k = torch.randn(2, 1, 6, 1, 8, generator=g, dtype=torch.float64)
    phase = torch.randint(0, 50, (1, 6), generator=g)

    def scores(turn: Any) -> Tensor:
        return turn.apply(q)[0, :, 0] @ turn.apply(k)[0, :, 0].T

    torch.testing.assert_close(scores(rotary.rotation(phase + shift)), scores(rotary.rotation(phase)))
    longer = rotary.rotation(phase).apply(q).norm(dim=-1) / q.norm(dim=-1)
    torch.testing.assert_close(longer, torch.full_like(longer, SCALINGS[name].strength()))


def test_interpolated_phases_are_fractions_of_the_old_ones() -> None:
    x, phase = torch.randn(1, 9, 2, 8, dtype=torch.float64), torch.arange(9)[None]
    plain, slowed = Rotary(8), Rotary(8, scaling=LinearScalingConfig(4.0))
    torch.testing.assert_close(slowed.rotation(4 * phase).apply(x), plain.rotation(phase).apply(x))


def test_a_rotation_with_strength_has_the_right_gradient() -> None:
    turn: Any = Rotary(4, scaling=SCALINGS["yarn"], context=CONTEXT).rotation(torch.arange(3)[None])
    x = torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(turn.apply, (x,))
