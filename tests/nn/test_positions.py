"""Positions of texts: scalings of rotary ones, what whole models do with each kind, and the laws they keep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from regard.attention import Causal, Full, Packed, Padded, Range, Slots, Softmax
from regard.attention.score import RelativeBuckets
from regard.config import load, override, to_toml
from regard.errors import UserError
from regard.models import GPT, GPTConfig
from regard.nn import AttentionContext, PositionConfig
from regard.nn.attention import SelfAttention
from regard.nn.positions.position import (
    AlibiConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    NoRotation,
    RelativeConfig,
    Rotary,
    RotaryConfig,
    SinusoidalConfig,
    T5Config,
)
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
from regard.train import MuonConfig

CPU = torch.device("cpu")
CONTEXT = 24
SCALINGS: dict[str, ScalingConfig] = {
    "none": NoScalingConfig(),
    "linear": LinearScalingConfig(factor=4.0),
    "ntk": NTKScalingConfig(factor=4.0),
    "dynamic": DynamicScalingConfig(factor=2.0, length=4 * CONTEXT),
    "yarn": YarnScalingConfig(factor=4.0, fast=2.0),
    "llama3": Llama3ScalingConfig(factor=4.0, fast=2.0),
}
RELATIVE: dict[str, PositionConfig] = {
    **{f"rotary, {name}": RotaryConfig(scaling=scaling) for name, scaling in SCALINGS.items()},
    "alibi": AlibiConfig(),
    "relative": RelativeConfig(distance=5),
    "t5": T5Config(buckets=6, furthest=20),
}
POSITIONS: dict[str, PositionConfig] = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedPositionConfig(),
    **RELATIVE,
}
seeds = st.integers(0, 2**32 - 1)


def model(position: PositionConfig, **changes: Any) -> GPT:
    """A small one with random numbers everywhere, in float64."""
    sizes: dict[str, Any] = {"vocabulary": 7, "context": CONTEXT, "layers": 2, "heads": 4, "kv_heads": 2, "width": 32}
    made, g = GPTConfig(**{**sizes, "position": position, "zero_init": False, **changes}).build(), torch.Generator()
    g.manual_seed(1)
    for name, parameter in made.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.5
        parameter.data = float(name.endswith("gain")) + spread * torch.randn(parameter.shape, generator=g)
    return made.double().eval()


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 7, (rows, length), generator=torch.Generator().manual_seed(seed))


# Rotary, scaled


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


sizes = st.integers(2, 64).map(lambda half: 2 * half)
bases = st.sampled_from([10_000.0, 500_000.0, 1e6, 100.0])
factors = st.sampled_from([1.0, 1.5, 4.0, 32.0])
contexts = st.sampled_from([64, 256, 4096, 8192])


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


# Whole models


@pytest.mark.parametrize("name", POSITIONS)
def test_step_by_step_is_one_pass(name: str) -> None:
    made, tokens = model(POSITIONS[name]), text(2, CONTEXT)
    want, state, got = made(tokens), made.start(2, CONTEXT), []
    for piece in tokens.split([5, 1, 1, 9, 8], dim=1):
        logits, state = made.step(piece, state)
        got.append(logits)
    torch.testing.assert_close(torch.cat(got, dim=1), want.detach())


@pytest.mark.parametrize("name", POSITIONS)
def test_padding_and_company_change_nothing(name: str) -> None:
    made, tokens = model(POSITIONS[name]), text(2, 14)
    alone = [made(tokens[:1, :9]), made(tokens[1:])]
    padded = made(tokens, Padded(torch.tensor([9, 14]), 14))
    torch.testing.assert_close(padded[:1, :9], alone[0])
    torch.testing.assert_close(padded[1:], alone[1])
    packed = made(torch.cat((tokens[:1, :9], tokens[1:]), dim=1), Packed.of([[9, 14]]))
    torch.testing.assert_close(packed, torch.cat(alone, dim=1))


@pytest.mark.parametrize("name", RELATIVE)
def test_shifting_every_phase_changes_nothing(name: str) -> None:
    made, tokens = model(RELATIVE[name]), text(1, 10)
    order = torch.arange(10)[None]
    here, there = (made(tokens, Slots(order, torch.zeros_like(order), order + by)) for by in (0, 1000))
    torch.testing.assert_close(there, here)
    torch.testing.assert_close(here, made(tokens))
    stretched = made(tokens, Slots(order, torch.zeros_like(order), 2 * order))
    assert not torch.allclose(stretched, here)  # distances do count


@given(seeds, st.integers(2, 8))
def test_without_positions_attention_is_equivariant(seed: int, length: int) -> None:
    """Permuted tokens give the permuted answer; with any other position they do not."""
    g = torch.Generator().manual_seed(seed)
    x, order = torch.randn(1, length, 16, generator=g), torch.randperm(length, generator=g)
    layer = SelfAttention(16, 2, 2, Softmax())
    context = AttentionContext(layer.mechanism.plan(Full(), Range(length), like=x), NoRotation())
    torch.testing.assert_close(layer(x[:, order], context), layer(x, context)[:, order], atol=1e-5, rtol=1e-4)
    if not torch.equal(order, torch.arange(length)):
        turned = context._replace(rotation=Rotary(8).rotation(torch.arange(length)[None]))
        assert not torch.allclose(layer(x[:, order], turned), layer(x, turned)[:, order], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["alibi", "relative", "t5", "rotary, yarn"])
def test_it_compiles_in_one_graph_and_has_the_same_gradients(name: str) -> None:
    made, tokens = model(POSITIONS[name], layers=1, qk_norm=False), text(2, 12)
    compiled = torch.compile(made, fullgraph=True, dynamic=False, backend="eager")
    found = []
    for run in (made, compiled):
        made.zero_grad()
        run(tokens).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in made.parameters()])  # pyright: ignore
    torch.compiler.reset()
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["alibi", "relative", "t5"])
def test_every_position_learns(name: str) -> None:
    """The token three places before: that takes order, and only distances can tell it."""
    torch.manual_seed(1)
    made = GPTConfig(vocabulary=7, context=CONTEXT, layers=2, heads=4, width=32, position=POSITIONS[name]).build()
    optimizer = MuonConfig(rest_lr=0.05).build(made)
    losses = []
    for step in range(40):
        tokens = text(16, CONTEXT, step)
        loss = torch.nn.functional.cross_entropy(made(tokens)[:, 3:].flatten(0, 1), tokens[:, :-3].flatten())
        loss.backward()
        optimizer.step(1.0)
        made.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_t5_has_one_table_and_relative_one_per_layer() -> None:
    shared, own = model(T5Config()), model(RelativeConfig())
    tables = [p for n, p in shared.named_parameters() if n.endswith("table")]
    assert len(tables) == 1
    mechanisms: list[Any] = [block.attention.mechanism for block in shared.blocks]  # pyright: ignore
    assert all(mechanism.bias.table is tables[0] for mechanism in mechanisms)
    assert len([p for n, p in own.named_parameters() if n.endswith("table")]) == 2
    again = model(T5Config())
    again.load_state_dict(shared.state_dict())
    assert torch.equal(again(text(1, 9)), shared(text(1, 9)))


def test_an_encoder_has_buckets_for_what_comes_after() -> None:
    sizes = {"width": 8, "head_width": 4, "context": 16}
    one, both = (T5Config().build(**sizes, causal=causal).bias() for causal in (True, False))
    assert isinstance(one, RelativeBuckets)
    assert isinstance(both, RelativeBuckets)
    assert one.bucket.unique().numel() == 32
    assert both.bucket.unique().numel() == 31  # nothing is both after and at distance 0
    assert (one.bucket[:128] == 0).all()
    assert not (both.bucket[:128] == 0).any()


def test_biases_keep_a_fast_path() -> None:
    for name in ("alibi", "relative", "t5"):
        made = model(POSITIONS[name])
        mechanism: Any = made.blocks[0].attention.mechanism  # pyright: ignore
        plan = mechanism.plan(Causal(), Range(256), like=torch.zeros(1))
        assert plan.backend == "banded"


# Configs


def test_a_scaling_is_chosen_like_any_part() -> None:
    config = load(GPTConfig, {"position": {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 8.0}}})
    assert config.position == RotaryConfig(scaling=YarnScalingConfig(factor=8.0))
    assert 'kind = "yarn"' in to_toml(config)
    assert load(GPTConfig, {"position": "rotary"}).position == RotaryConfig()
    argv = ["--position", "rotary", "--position.scaling", "yarn", "--position.scaling.factor", "8"]
    assert override(GPTConfig(), argv) == config
    assert override(GPTConfig(), ["--position", "t5", "--position.buckets", "8"]).position == T5Config(buckets=8)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ({"kind": "rotary", "scaling": {"kind": "linear", "factor": 0.5}}, "factor must be at least 1"),
        ({"kind": "rotary", "scaling": {"kind": "yarn", "fast": 1.0, "slow": 2.0}}, "must be more than slow"),
        ({"kind": "rotary", "scaling": {"kind": "llama3", "fast": 1.0}}, "must be more than slow"),
        ({"kind": "rotary", "scaling": {"kind": "dynamic", "length": 0}}, "length must be a finite number above 0"),
        ({"kind": "rotary", "base": 1.0, "scaling": "ntk"}, "a base of 1 does not have"),
        ({"kind": "relative", "distance": 0}, "distance must be at least 1"),
        ({"kind": "t5", "buckets": 5}, "even number from 4 on"),
        ({"kind": "t5", "buckets": 64, "furthest": 32}, "furthest must be more"),
    ],
)
def test_impossible_settings_are_refused(position: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load(GPTConfig, {"position": position})


def test_one_pair_cannot_be_stretched_by_its_base() -> None:
    with pytest.raises(UserError, match="a head width of 2 has one"):
        GPTConfig(width=8, heads=4, position=RotaryConfig(scaling=NTKScalingConfig())).build()
    assert replace(RotaryConfig(), scaling=LinearScalingConfig()).build(width=8, head_width=2, context=4) is not None


def test_sinusoidal_positions_do_not_drown_the_tokens():
    """Vaswani et al. 2017, sec. 3.4: embeddings are multiplied by the root of the width before waves of height 1."""
    torch.manual_seed(1)
    model = GPTConfig(vocabulary=50, context=16, layers=1, heads=4, width=64, position=SinusoidalConfig()).build()
    caught: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    model(torch.randint(50, (2, 16)))
    tokens = caught[0][0] - caught[0][1]  # the positions cancel
    assert tokens.std().item() == pytest.approx(0.02 * 2**0.5 * 64**0.5, rel=0.1)
