"""Positions of texts: what whole models do with each kind, and the laws that they keep."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from positions_kit import CONTEXT, POSITIONS, RELATIVE, model, seeds, text

from regard.attention import Causal, Full, Packed, Padded, Range, Slots, Softmax
from regard.attention.score import RelativeBuckets
from regard.models import GPTConfig
from regard.nn import AttentionContext
from regard.nn.attention import AttentionSizes, SelfAttention
from regard.nn.positions.position import (
    NoRotation,
    RelativeConfig,
    Rotary,
    SinusoidalConfig,
    T5Config,
)
from regard.train import MuonConfig


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
    layer = SelfAttention(AttentionSizes(16, 2, 2), Softmax())
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


def test_sinusoidal_positions_do_not_drown_the_tokens():
    """Vaswani et al. 2017, sec. 3.4: embeddings are multiplied by the root of the width before waves of height 1."""
    torch.manual_seed(1)
    model = GPTConfig(vocabulary=50, context=16, layers=1, heads=4, width=64, position=SinusoidalConfig()).build()
    caught: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    model(torch.randint(50, (2, 16)))
    tokens = caught[0][0] - caught[0][1]  # the positions cancel
    assert tokens.std().item() == pytest.approx(0.02 * 2**0.5 * 64**0.5, rel=0.1)
