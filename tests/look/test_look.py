"""Looking: the weights are those of the operator, in blocks as in one, and the model does not notice."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import Causal, Packed, Padded, Range, Softmax, Window, WindowConfig, attend
from regard.look import Attention, Head, attentions, dense_weights, describe, evaluation_mode, heads
from regard.look.capture.layer_names import LayerName
from regard.models import GPTConfig
from regard.nn.positions.position import LearnedPositionConfig

TINY = {"vocabulary": 11, "context": 32, "layers": 2, "heads": 4, "width": 16, "zero_init": False}


def gpt(**changes):
    torch.manual_seed(0)
    return GPTConfig(**{**TINY, **changes}).build()


@given(
    length=st.integers(1, 20),
    block=st.integers(1, 24),
    window=st.none() | st.integers(1, 6),
    slots=st.sampled_from(["range", "padded", "packed"]),
    seed=st.integers(0, 99),
)
def test_weights_are_the_operators_in_blocks_of_any_size(length, block, window, slots, seed):
    noise = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, heads, length, 4, generator=noise) for heads in (4, 2))
    seats = {
        "range": Range(length, start=3),
        "padded": Padded(torch.tensor([length, max(1, length // 2)]), length),
        "packed": Packed.of([[length], [max(1, length // 2), *([length - length // 2] if length > 1 else [])]]),
    }[slots]
    mask = Causal() if window is None else Causal() & Window(window)
    mechanism = Softmax(temperature=0.7)
    wanted = attend(q, k, k, mask, queries=seats, mechanism=mechanism, weights=True).weights
    seen = Attention("one", mechanism, q, k, mechanism.plan(mask, seats, like=q))
    found = torch.cat([dense_weights(seen, slice(i, i + block)) for i in range(0, length, block)], dim=2)
    torch.testing.assert_close(found, wanted)
    one, many = heads([seen], block=1000), heads([seen], block)
    for a, b in zip(one, many, strict=True):
        assert a[:4] == b[:4]
        assert a[4:] == pytest.approx(b[4:], abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention": WindowConfig(4), "global_every": 2}, {"kv_heads": 2}, {"position": LearnedPositionConfig()}],
)
def test_every_attention_of_a_model_is_found_and_nothing_changes(changes):
    model = gpt(dropout=0.3, **changes)
    model.train()
    model.blocks[1].eval()  # a mode of its own must survive
    modes = [module.training for module in model.modules()]
    tokens = torch.arange(20)[None] % 11
    with evaluation_mode(model):
        plain = model(tokens)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    outputs = []
    found = attentions(model, lambda: outputs.append(model(tokens)))
    assert [a.name for a in found] == ["blocks.0.attention.mechanism", "blocks.1.attention.mechanism"]
    torch.testing.assert_close(outputs[0], plain)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(a.q.requires_grad or a.k.requires_grad for a in found)
    measured = heads(found)
    assert [(h.layer, h.head) for h in measured] == [(n, h) for n in (1, 2) for h in (1, 2, 3, 4)]
    assert all(0 <= h.spread <= 1 + 1e-6 and h.peak <= 1 + 1e-6 for h in measured)


def test_the_weights_found_are_those_that_mixed_the_values():
    """weights @ v is what the layer's output projection was given."""
    model = gpt(kv_heads=2).eval()
    mixed, values = [], []
    mechanism = next(module for module in model.modules() if isinstance(module, Softmax))

    def note(_, inputs, out):
        mixed.append(out.values)
        values.append(inputs[2])

    mechanism.register_forward_hook(note)
    (first, _) = attentions(model, lambda: model(torch.arange(12)[None] % 11))
    torch.testing.assert_close(dense_weights(first) @ values[0].repeat_interleave(2, dim=1), mixed[0])


def made(q, k):
    mechanism = Softmax(scale=1.0)
    return heads([Attention("made", mechanism, q, k, mechanism.plan(Causal(), Range(q.shape[2]), like=q))])[0]


def test_a_head_without_preference_is_even():
    head = made(torch.zeros(1, 1, 16, 4), torch.zeros(1, 1, 16, 4))
    assert head.spread == pytest.approx(1)
    assert head.entropy == pytest.approx(sum(math.log(n) for n in range(2, 17)) / 15)
    assert describe(head) == "even"


def test_habits_are_told_apart():
    places = torch.eye(16)[None, None] * 30
    assert describe(made(places, places)) == "own token"
    before = torch.roll(places, 1, dims=2)  # the query at i asks for the key at i - 1
    assert describe(made(torch.roll(places, 1, dims=2), places)) == "previous token"
    assert made(before, places).previous == pytest.approx(15 / 15, abs=1e-4)
    first = places[:, :, :1].expand_as(places)
    assert describe(made(first, places)) == "first token"
    assert describe(Head(1, 1, "x", LayerName(1, "layer 1", "1"), 1.0, 0.5, 0.1, 0.1, 0.1, 0.7)) == "focused"
    assert describe(Head(1, 1, "x", LayerName(1, "layer 1", "1"), 1.0, 0.5, 0.1, 0.1, 0.1, 0.3)) == "mixed"
