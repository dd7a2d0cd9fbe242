"""Laws of recurrent sequence-to-sequence models, for every cell, bridge and depth."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from strategies import agree, examples, generator, seeds
from torch import Tensor

from recurrent_definition import by_token
from regard.generate.decoder import select_rows
from regard.look import attentions, dense_weights
from regard.models import BahdanauConfig, BridgeConfig, FixedConfig, LuongConfig, Seq2Seq, Seq2SeqConfig
from regard.nn.recurrent import Kind, Recurrent, RecurrentState, Unrolled

TARGET, SOURCE = 7, 9
kinds: st.SearchStrategy[Kind] = st.sampled_from(["gru", "lstm", "rnn"])
ATTENDING = [BahdanauConfig(), BahdanauConfig(3), LuongConfig(), LuongConfig("dot"), LuongConfig(feeding=False)]
BRIDGES = [FixedConfig(), FixedConfig(every_step=False), *ATTENDING]
every_bridge = pytest.mark.parametrize("bridge", BRIDGES, ids=repr)
held = st.lists(st.integers(1, 9), min_size=2, max_size=4)  # the lengths of a batch's sentences


configs = st.builds(
    Seq2SeqConfig,
    vocabulary=st.just(TARGET),
    source_vocabulary=st.sampled_from([None, SOURCE]),
    cell=kinds,
    width=st.sampled_from([4, 6]),
    embedding=st.sampled_from([None, 5]),
    layers=st.integers(1, 3),
    dropout=st.sampled_from([0.0, 0.3]),
    tied=st.booleans(),
    bidirectional=st.booleans(),
)


def wild(config: Seq2SeqConfig, bridge: BridgeConfig, seed: int) -> Seq2Seq:
    """A model with random weights everywhere, biases included."""
    plain = bridge == FixedConfig(every_step=False)
    config = replace(config, attention=bridge, tied=config.tied and not (plain and config.embedding))
    model, g = config.build().double(), generator(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=torch.float64) / parameter.shape[-1] ** 0.25
    return model.eval()


def text(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, TARGET, (rows, length), generator=generator(seed))


def gradients(model: Seq2Seq, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


@examples(2)
@given(kinds, st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), seeds)
def test_unrolled_is_the_recurrent_layer(
    kind: Kind, layers: int, known: int, late: int, batch: int, count: int, seed: int
) -> None:
    """Step by step with late inputs = the layer over whole inputs, forward and backward, from any state."""
    g = generator(seed)
    layer = Recurrent(kind, known + late, 4, layers).double()
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
    x = torch.randn(batch, count, known + late, generator=g, dtype=torch.float64, requires_grad=True)
    h, c, up = (torch.randn(batch, n, 4, generator=g, dtype=torch.float64) for n in (layers, layers, count))
    state = RecurrentState(h, c if kind == "lstm" else None)
    loop = Unrolled(layer, x[..., :known], state)
    got = torch.stack([loop.step(x[:, t, known:]) for t in range(count)], dim=1)
    want, last = by_token(layer, x, state=state)
    agree(got, want, "outputs")
    for mine, other in zip(loop.state(), last, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            agree(mine, other, "state")
    wrt = (x, *layer.parameters())
    for a, b in zip(*(torch.autograd.grad((out * up).sum(), wrt) for out in (got, want)), strict=True):
        agree(a, b, "gradient")


@every_bridge
@examples(0.8)
@given(configs, seeds, held, st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_step_equals_the_full_pass(
    bridge: BridgeConfig, config: Seq2SeqConfig, seed: int, lengths: list[int], cut: list[int]
) -> None:
    model, batch = wild(config, bridge, seed), len(lengths)
    source, target = text(batch, max(lengths) + 1, seed), text(batch, sum(cut), seed + 1)
    want = model(target, source, torch.tensor(lengths)).detach()
    state = model.start(batch, sum(cut), source=source, source_lengths=torch.tensor(lengths))
    got = []
    for piece in target.split(cut, dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    assert state.used == sum(cut)
    agree(torch.cat(got, dim=1), want, "steps")


@every_bridge
@examples(0.8)
@given(configs, seeds, held, st.integers(0, 3), st.integers(1, 5))
def test_a_sentence_in_company_is_as_alone(
    bridge: BridgeConfig, config: Seq2SeqConfig, seed: int, lengths: list[int], more: int, count: int
) -> None:
    """Padding and neighbours change neither logits nor gradients, whatever tokens the padding holds."""
    model, batch = wild(config, bridge, seed), len(lengths)
    source, target = text(batch, max(lengths) + more, seed), text(batch, count, seed + 1)
    together = model(target, source, torch.tensor(lengths))
    up = torch.randn(together.shape, generator=generator(seed + 2), dtype=torch.float64)
    alone = [model(target[b : b + 1], source[b : b + 1, :n], torch.tensor([n])) for b, n in enumerate(lengths)]
    agree(together, torch.cat(alone), "logits")
    loss = (torch.cat(alone) * up).sum()
    got, want = gradients(model, (together * up).sum()), gradients(model, loss)
    for name in want:
        agree(got[name], want[name], f"gradient of {name}")
    other = source.clone()
    for b, n in enumerate(lengths):
        other[b, n:] = (other[b, n:] + 1) % TARGET
    assert torch.equal(model(target, other, torch.tensor(lengths)), together)


@every_bridge
@examples(0.6)
@given(configs, seeds, held, st.integers(2, 7), st.data())
def test_a_target_does_not_see_its_future(
    bridge: BridgeConfig, config: Seq2SeqConfig, seed: int, lengths: list[int], count: int, data: st.DataObject
) -> None:
    model, batch = wild(config, bridge, seed), len(lengths)
    source, target = text(batch, max(lengths), seed), text(batch, count, seed + 1)
    cut = data.draw(st.integers(1, count - 1), label="cut")
    caught: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out)
    logits = model(target, source, torch.tensor(lengths))
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, :cut].sum(), caught)
    assert not gradient[:, cut:].any()
    assert gradient[:, :cut].any()
    other = target.clone()
    other[:, cut:] = (other[:, cut:] + 1) % TARGET
    assert torch.equal(model(other, source, torch.tensor(lengths))[:, :cut], logits[:, :cut])


@every_bridge
@examples(0.6)
@given(configs, seeds, held, st.integers(2, 4), st.lists(st.integers(1, 3), min_size=2, max_size=4), st.data())
def test_beams_are_separate_decodings(
    bridge: BridgeConfig,
    config: Seq2SeqConfig,
    seed: int,
    lengths: list[int],
    beams: int,
    cut: list[int],
    data: st.DataObject,
) -> None:
    """Row b*beams + j decodes sentence b as if alone; rows may be exchanged, and sentences may leave, in between."""
    model, batch = wild(config, bridge, seed), len(lengths)
    source, real = text(batch, max(lengths), seed), torch.tensor(lengths)
    state = model.start(batch, sum(cut), source=source, source_lengths=real, beams=beams)
    past = text(batch * beams, cut[0], seed + 1)
    first, state = model.step(past, state)
    copies = torch.arange(batch).repeat_interleave(beams)
    agree(first, model(past, source[copies], real[copies]).detach(), "first step")

    stay = data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=batch, unique=True), label="stay")
    chosen = [b * beams + data.draw(st.integers(0, beams - 1), label="beam") for b in stay for _ in range(beams)]
    state = state._replace(
        shared=select_rows(state.shared, torch.tensor(stay)), own=select_rows(state.own, torch.tensor(chosen))
    )
    rest = text(len(chosen), sum(cut[1:]), seed + 2)
    got = []
    for piece in rest.split(cut[1:], dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    copies = torch.tensor(stay).repeat_interleave(beams)
    whole = torch.cat((past[chosen], rest), dim=1)
    agree(torch.cat(got, dim=1), model(whole, source[copies], real[copies])[:, cut[0] :].detach(), "chosen beams")


@pytest.mark.parametrize("bridge", ATTENDING, ids=repr)
@examples(0.6)
@given(configs, seeds, held, st.integers(0, 2), st.integers(1, 5))
def test_attention_shares_out_exactly_the_real_source(
    bridge: BridgeConfig, config: Seq2SeqConfig, seed: int, lengths: list[int], more: int, count: int
) -> None:
    model, batch, longest = wild(config, bridge, seed).float(), len(lengths), max(lengths) + more
    source, target, real = text(batch, longest, seed), text(batch, count, seed + 1), torch.tensor(lengths)
    found = attentions(model, lambda: model(target, source, real))
    assert {attention.name for attention in found} == {"decoder.mechanism"}
    weights = torch.cat([dense_weights(attention) for attention in found], dim=2)
    assert weights.shape == (batch, 1, count, longest)  # a whole alignment, in one call or step by step
    padding = torch.arange(longest) >= real[:, None]
    assert not weights.masked_select(padding[:, None, None]).any()
    assert (weights.sum(-1) - 1).abs().max() < 1e-6


def test_the_fixed_bridge_has_nothing_to_look_at() -> None:
    model = wild(Seq2SeqConfig(vocabulary=TARGET, width=4), FixedConfig(), 0)
    assert attentions(model, lambda: model(text(1, 3, 0), text(1, 3, 1), torch.tensor([3]))) == []


@pytest.mark.parametrize("bridge", [FixedConfig(), BahdanauConfig(), LuongConfig(), LuongConfig(feeding=False)])
@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_every_weight_learns(bridge: BridgeConfig, cell: Kind) -> None:
    """No parameter is idle: each has a gradient after one pass with fresh weights."""
    config = Seq2SeqConfig(vocabulary=TARGET, width=6, layers=2, cell=cell, attention=bridge)
    torch.manual_seed(0)
    model = config.build()
    loss = model(text(3, 4, 0), text(3, 5, 1), torch.tensor([5, 2, 3])).square().sum()
    for name, gradient in gradients(model, loss).items():
        assert gradient.any(), name
