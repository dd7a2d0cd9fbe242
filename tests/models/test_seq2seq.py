"""Recurrent sequence-to-sequence models: the papers' equations written out, what is refused, and how they start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention import Additive, Softmax, attend
from regard.config import load
from regard.errors import UserError
from regard.look import attentions, dense_weights
from regard.models import BahdanauConfig, FixedConfig, LuongConfig, ModelConfig, Seq2Seq, Seq2SeqConfig

SMALL = Seq2SeqConfig(vocabulary=11, context=16, width=6, dropout=0.0)
SOURCE = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 10, 0, 0]])
LENGTHS = torch.tensor([5, 3])
INPUTS = torch.tensor([[2, 7, 1, 8], [1, 4, 1, 4]])


def built(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    model = replace(SMALL, **changes).build()
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn_like(parameter)
    return model.eval()


# The equations


def gru(x: Tensor, h: Tensor, model: Seq2Seq, path: str, end: str = "_l0") -> Tensor:
    """One unit after another, as in PyTorch's documentation of nn.GRU."""
    w = {name: model.get_parameter(f"{path}.{name}{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    wr, wz, wn = (w["weight_ih"] @ x + w["bias_ih"]).chunk(3)
    ur, uz, un = (w["weight_hh"] @ h + w["bias_hh"]).chunk(3)
    r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
    return (1 - z) * torch.tanh(wn + r * un) + z * h


def annotate(model: Seq2Seq, source: Tensor) -> tuple[list[Tensor], Tensor]:
    """The annotations of one sentence, and both directions' last states side by side."""
    half = model.config.width // 2
    forward, backward = [torch.zeros(half)], [torch.zeros(half)]
    for token in source:
        forward.append(gru(model.source_embed.weight[token], forward[-1], model, "encoder.cells"))
    for token in source.flip(0):
        backward.append(gru(model.source_embed.weight[token], backward[-1], model, "encoder.cells", "_l0_reverse"))
    pairs = zip(forward[1:], reversed(backward[1:]), strict=True)
    return [torch.cat(pair) for pair in pairs], torch.cat((forward[-1], backward[-1]))


def maxout(model: Seq2Seq, *parts: Tensor) -> Tensor:
    first, second = model.get_submodule("decoder.readout.both")(torch.cat(parts)).chunk(2)
    return torch.maximum(first, second)


def alignment(model: Seq2Seq) -> Tensor:
    """The weights [B, T, S] of one pass over the batch, steps put together."""
    found = attentions(model, lambda: model(INPUTS, SOURCE, LENGTHS))
    return torch.cat([dense_weights(attention) for attention in found], dim=2)[:, 0]


def test_bahdanaus_model_is_the_papers() -> None:
    """e_tj = vᵀ tanh(W h_{t-1} + U a_j) with the PREVIOUS state; c_t enters the cell and the output (appendix A)."""
    model = built(attention=BahdanauConfig(hidden=4), tied=False)
    w, v = (model.get_parameter(f"decoder.mechanism.score.{name}.weight") for name in ("query", "out"))
    u, first = model.get_parameter("decoder.project.weight"), model.get_submodule("decoder.first")
    logits, weights = model(INPUTS, SOURCE, LENGTHS), alignment(model)
    for b, length in enumerate(LENGTHS):
        notes, last = annotate(model, SOURCE[b, :length])
        h = torch.tanh(first(last))
        for t, token in enumerate(INPUTS[b]):
            energies = [v[0] @ torch.tanh(w @ h + u @ note) for note in notes]
            shares = torch.stack(energies).softmax(0)
            torch.testing.assert_close(weights[b, t, :length], shares)
            assert not weights[b, t, length:].any()
            c = sum(share * note for share, note in zip(shares, notes, strict=True))
            assert isinstance(c, Tensor)
            y = model.embed.weight[token]
            h = gru(torch.cat((y, c)), h, model, "decoder.cells.cells")
            torch.testing.assert_close(logits[b, t], model.unembed(maxout(model, h, y, c)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("score", ["dot", "general"])
def test_luongs_model_is_the_papers(score, feeding: bool) -> None:
    """The score of the CURRENT state, unscaled; h̃ = tanh(W [c; h]) makes the output and, fed, the next input."""
    model = built(attention=LuongConfig(score, feeding), embedding=4)
    matrix = model.get_parameter("decoder.mechanism.score.weight") if score == "general" else torch.eye(6)
    logits, weights = model(INPUTS, SOURCE, LENGTHS), alignment(model)
    for b, length in enumerate(LENGTHS):
        notes, h = annotate(model, SOURCE[b, :length])
        outcome = torch.zeros(4)
        for t, token in enumerate(INPUTS[b]):
            y = model.embed.weight[token]
            h = gru(torch.cat((y, outcome)) if feeding else y, h, model, "decoder.cells.cells")
            shares = torch.stack([h @ matrix @ note for note in notes]).softmax(0)
            torch.testing.assert_close(weights[b, t, :length], shares, atol=1e-5, rtol=1e-5)
            c = shares @ torch.stack(notes)
            outcome = torch.tanh(model.get_parameter("decoder.attentional.weight") @ torch.cat((c, h)))
            torch.testing.assert_close(logits[b, t], model.unembed(outcome), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("every_step", [True, False])
def test_a_fixed_context_begins_the_decoder_and_enters_every_step(every_step: bool) -> None:
    model = built(attention=FixedConfig(every_step))
    logits = model(INPUTS, SOURCE, LENGTHS)
    for b, length in enumerate(LENGTHS):
        _, c = annotate(model, SOURCE[b, :length])
        h = c
        for t, token in enumerate(INPUTS[b]):
            y = model.embed.weight[token]
            h = gru(torch.cat((y, c)) if every_step else y, h, model, "decoder.cells.cells")
            features = maxout(model, h, y, c) if every_step else h
            torch.testing.assert_close(logits[b, t], model.unembed(features), atol=1e-5, rtol=1e-5)


def test_the_context_of_several_layers_is_the_last_ones_and_each_begins_where_its_own_ended() -> None:
    model = built(attention=FixedConfig(), layers=3, bidirectional=False)
    notes, last = model.encoder(model.source_embed(SOURCE), LENGTHS)
    state = model.start(2, 4, source=SOURCE, source_lengths=LENGTHS)
    torch.testing.assert_close(state.shared, notes[[0, 1], LENGTHS - 1])
    torch.testing.assert_close(state.own.hidden.hidden, last.hidden)


def test_keys_multiplied_beforehand_score_the_same() -> None:
    torch.manual_seed(0)
    whole = Additive(query_width=3, key_width=5, hidden=4)
    asked = Additive(query_width=3, key_width=None, hidden=4)
    asked.load_state_dict({name: value for name, value in whole.state_dict().items() if name != "key.weight"})
    q, k, v = torch.randn(2, 3), torch.randn(6, 5), torch.randn(6, 2)
    found = attend(q, whole.key(k), v, mechanism=Softmax(asked))
    torch.testing.assert_close(found.values, attend(q, k, v, mechanism=Softmax(whole)).values)


# Parts and sizes


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 7}, "a width of 7 does not halve into two directions; width = 8 would do"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"source_vocabulary": 0}, "source_vocabulary must be at least 1, not 0"),
        ({"embedding": 0}, "embedding must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"attention": FixedConfig(every_step=False), "embedding": 4}, "cannot serve as both; set tied = false"),
    ],
)
def test_impossible_configs(change: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()


def test_configs_from_tables() -> None:
    config = load(ModelConfig, {"kind": "seq2seq", "attention": {"kind": "luong", "score": "dot"}, "cell": "lstm"})
    assert config == Seq2SeqConfig(cell="lstm", attention=LuongConfig("dot"))
    assert load(ModelConfig, {"kind": "seq2seq", "attention": "fixed"}) == Seq2SeqConfig(attention=FixedConfig())
    with pytest.raises(UserError, match="hidden must be at least 1, not 0"):
        load(ModelConfig, {"kind": "seq2seq", "attention": {"kind": "bahdanau", "hidden": 0}})
    with pytest.raises(UserError, match="gru"):
        load(ModelConfig, {"kind": "seq2seq", "cell": "grue"})


def test_what_is_tied() -> None:
    joint, apart = SMALL.build(), replace(SMALL, source_vocabulary=5).build()
    assert joint.embed.weight is joint.unembed.weight is joint.source_embed.weight
    assert apart.embed.weight is apart.unembed.weight is not apart.source_embed.weight
    assert apart.source_embed.weight.shape == (5, 6)
    untied = replace(SMALL, tied=False).build()
    assert len({id(m.weight) for m in (untied.embed, untied.unembed, untied.source_embed)}) == 3


def test_features_and_head_make_the_forward_pass() -> None:
    model = built(embedding=4)
    features = model.features(INPUTS, SOURCE, LENGTHS)
    assert features.shape == (2, 4, 4)
    logits = model(INPUTS, SOURCE, LENGTHS)
    assert logits.shape == (2, 4, 11)
    assert torch.equal(model.head(features), logits)
    assert not Seq2Seq.compilable


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_initial_weights(cell) -> None:
    torch.manual_seed(0)
    model = replace(SMALL, cell=cell, width=64, layers=2, tied=False).build()
    for name, parameter in model.named_parameters():
        if ".weight_hh" in name:
            for gate in parameter.split(parameter.shape[1]):
                torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), atol=1e-5, rtol=0)
        elif cell == "lstm" and ".bias_ih" in name:
            assert torch.equal(parameter, torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(len(parameter) // 4))
        elif "bias" in name:
            assert not parameter.any(), name
        elif "embed" in name and "un" not in name:
            assert parameter.std().item() == pytest.approx(0.1, rel=0.1), name
        else:
            assert parameter.std() > 0.03, name
    logits = model.eval()(INPUTS, SOURCE, LENGTHS)
    assert logits.std() < 2  # nobody is sure of anything yet
    torch.manual_seed(0)
    again = replace(SMALL, cell=cell, width=64, layers=2, tied=False).build().state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())


def test_dropout_in_training_only() -> None:
    for bridge in (FixedConfig(), BahdanauConfig(), LuongConfig(), LuongConfig(feeding=False)):
        model = built(dropout=0.3, layers=2, attention=bridge).train()
        assert not torch.equal(model(INPUTS, SOURCE, LENGTHS), model(INPUTS, SOURCE, LENGTHS))
        model.eval()
        assert torch.equal(model(INPUTS, SOURCE, LENGTHS), model(INPUTS, SOURCE, LENGTHS))


@pytest.mark.parametrize("bridge", [FixedConfig(), BahdanauConfig(), LuongConfig(), LuongConfig("dot", False)])
@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_sixteen_bits_under_autocast(bridge, cell) -> None:
    model = built(cell=cell, attention=bridge, layers=2)
    want = model(INPUTS, SOURCE, LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(INPUTS, SOURCE, LENGTHS)
        logits.float().square().sum().backward()
        state = model.start(2, 4, source=SOURCE, source_lengths=LENGTHS)
        stepped, _ = model.step(INPUTS, state)
    assert (logits - want).abs().max() < 0.05 * want.abs().max()
    torch.testing.assert_close(stepped, logits.detach(), atol=0.05, rtol=0.05)


# Decoding


def test_a_full_state_says_so() -> None:
    model = built()
    state = model.start(2, 5, source=SOURCE, source_lengths=LENGTHS)
    _, state = model.step(INPUTS, state)
    with pytest.raises(UserError, match="the state holds 5 tokens, 4 are there and 4 more were given"):
        model.step(INPUTS, state)
    with pytest.raises(UserError, match="2 sources were given for a batch of 3"):
        model.start(3, 5, source=SOURCE, source_lengths=LENGTHS)


def test_beams_share_one_memory() -> None:
    """The source's side of the state has a row per sentence, however many beams there are; no step keeps a graph."""
    model = built()
    state = model.start(2, 9, source=SOURCE, source_lengths=LENGTHS, beams=5)
    assert state.shared.keys.shape == state.shared.values.shape == (2, 5, 6)
    assert state.own.hidden.hidden.shape == (10, 1, 6)
    logits, after = model.step(INPUTS.repeat_interleave(5, dim=0), state)
    assert logits.shape == (10, 4, 11)
    assert after.shared is state.shared
    assert not logits.requires_grad


def test_a_few_steps_learn_to_copy() -> None:
    """Each bridge lowers its loss on one batch: the loop's gradients point the right way."""
    for bridge in (FixedConfig(), BahdanauConfig(), LuongConfig(), LuongConfig(feeding=False)):
        torch.manual_seed(0)
        model = replace(SMALL, width=32, attention=bridge).build()
        source = torch.randint(3, 11, (32, 4))
        inputs = torch.cat((torch.zeros(32, 1, dtype=torch.long), source[:, :-1]), dim=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        losses = []
        for _ in range(60):
            logits = model(inputs, source, torch.full((32,), 4))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.3 * losses[0], bridge
