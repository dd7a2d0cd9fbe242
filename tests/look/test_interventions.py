"""The logit lens, ablation and patching agree with the model itself."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from session_kit import TEXT, traced

from regard.errors import UserError
from regard.generate import Sampling
from regard.look.interventions.ablate import cross_role_keys, head_effects, role_keys
from regard.look.views.reading import mean
from regard.look.views.session import Session
from regard.nn import Block


@pytest.mark.parametrize("name", ["plain", "repeated", "reversible", "transformer"])
def test_the_last_layer_of_the_lens_is_the_model(name):
    session, _ = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.specials is not None else (TEXT,)
    told = session.lens(*texts)
    depth = 3 if session.specials is not None else 2
    assert told["layers"] == ["embedding", *map(str, range(1, depth + 1))]
    assert len(told["top"]) == len(told["target_rank"]) == depth + 1
    reading = session.read(*texts)
    with torch.no_grad():
        logits = session.model.eval().head(reading.features(session.model))[0]
    likely = logits.softmax(-1).max(-1)
    assert [one["probability"] for one in told["top"][-1]] == pytest.approx(likely.values.tolist(), abs=1e-4)
    assert [one["text"] for one in told["top"][-1]] == session.texts(likely.indices.tolist())
    ranks = [r for r in told["target_rank"][-1] if r is not None]
    order = logits.argsort(descending=True)
    assert ranks == [order[i].tolist().index(t) for i, t in enumerate(reading.targets.tolist()) if t >= 0]
    assert told["top"][0] != told["top"][-1]


@pytest.mark.parametrize("name", ["plain", "repeated", "grouped", "transformer", "bahdanau", "luong"])
def test_ablation_is_what_zeroed_weights_would_do(name):
    session, trace = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.specials is not None else (TEXT, None)
    same = session.ablate(texts[0], [], count=6, target=texts[1])
    assert same["loss"]["before"] == same["loss"]["after"] == pytest.approx(trace.loss)
    assert same["text"]["before"] == same["text"]["after"]
    last = len(trace.attentions) - 1
    found = session.ablate(texts[0], [(last, 0)], count=6, target=texts[1])
    assert found["loss"]["before"] == pytest.approx(trace.loss)
    assert found["loss"]["after"] != pytest.approx(trace.loss, abs=1e-6)
    expected = len(trace.predicted_tokens) if trace.predicted_tokens else len(trace.tokens)
    assert len(found["per_token"]) == expected
    if name in ("plain", "grouped", "transformer"):
        model = copy.deepcopy(session.model)
        part: Any = model.get_submodule(trace.attentions[last].name.rpartition(".")[0])
        part.out.weight.data[:, : part.head_width] = 0
        other = Session(model, session.tokenizer, session.specials)
        assert found["loss"]["after"] == pytest.approx(other.trace(*texts).loss, abs=1e-5)
        assert found["text"]["after"] == other.ablate(texts[0], [], count=6, target=texts[1])["text"]["before"]
    with pytest.raises(UserError, match="heads 0 to"):
        session.ablate(texts[0], [(0, 99)], target=texts[1])
    with pytest.raises(UserError, match="no attention 99"):
        session.ablate(texts[0], [(99, 0)], target=texts[1])


@pytest.mark.parametrize("name", ["plain", "repeated", "reversible"])
def test_patching_moves_what_it_says(name):
    session, _ = traced(name)
    other = TEXT[::-1]
    same = session.patch(TEXT, TEXT, 1)
    assert same["loss"]["after"] == pytest.approx(same["loss"]["before"], abs=1e-6)
    everything = session.patch(TEXT, other, 2)  # all of the last layer: the other text's answer
    wanted = session.next(other, Sampling())["candidates"][:5]
    assert [one["text"] for one in everything["next"]["after"]] == [one["text"] for one in wanted]
    start = session.patch(TEXT, other, 0)
    assert [one["text"] for one in start["next"]["after"]] == [one["text"] for one in wanted]
    some = session.patch(TEXT, other, 1, [20])
    changed = [before != pytest.approx(after, abs=1e-6) for before, after in some["per_token"][1:]]
    assert not any(changed[:20])  # nothing before it can have heard of it
    assert any(changed[20:])
    with pytest.raises(UserError, match="layers 0 to 2"):
        session.patch(TEXT, other, 3)
    with pytest.raises(UserError, match="positions 0 to"):
        session.patch(TEXT, other, 0, [99])


@pytest.mark.parametrize("name", ["plain", "grouped", "transformer"])
def test_effects_of_heads_are_those_of_ablation(name, monkeypatch):
    session, trace = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.specials is not None else (TEXT, None)
    reading = session.read(*texts)
    everywhere = lambda *shape: {"all": torch.ones((), dtype=torch.bool)}  # noqa: E731
    monkeypatch.setattr("regard.look.interventions.ablate.role_keys", everywhere)
    monkeypatch.setattr("regard.look.interventions.ablate.cross_role_keys", everywhere)
    effects = head_effects(session.model, reading, trace.attentions)
    for attention, head in ((0, 0), (len(effects) - 1, 1)):
        loss = session.ablate(texts[0], [(attention, head)], count=0, target=texts[1])["loss"]
        found = effects[attention][head]
        assert found["head"] == pytest.approx(loss["after"] - loss["before"], abs=1e-5)
        assert found["all"] == pytest.approx(found["head"], abs=1e-4)  # without its attention to any key
    assert head_effects(session.model, reading, trace.attentions * 10**6) == []


def test_keys_of_a_role():
    keys = role_keys(torch.tensor([5, 6, 5, 6, 7]))
    pairs = {name: [tuple(pair) for pair in chosen.nonzero().tolist()] for name, chosen in keys.items()}
    assert pairs["previous"] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert pairs["self"] == [(i, i) for i in range(5)]
    assert pairs["sink"] == [(2, 0), (3, 0), (4, 0)]
    assert pairs["duplicate"] == [(2, 0), (3, 1)]
    assert pairs["induction"] == [(2, 1), (3, 2)]  # the token after the earlier occurrence
    assert cross_role_keys(2, 5, torch.device("cpu"))["diagonal"].tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("name", ["plain", "repeated", "reversible", "transformer"])
def test_contributions_to_the_residual_stream(name):
    session, _ = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.specials is not None else (TEXT, None)
    found = session.residual(*texts)
    count = len(found["tokens"])
    assert all(len(norms) == count for norms in found["residual"])
    assert len({part["layer"] for part in found["parts"]}) == len(found["residual"]) - 1
    for (before, after), layer in zip(pairwise(found["residual"]), range(1, 99), strict=False):
        parts = [part["norm"] for part in found["parts"] if part["layer"] == layer]
        for i in range(count):  # the triangle inequality: a layer adds its parts and nothing else
            assert abs(after[i] - before[i]) <= sum(norms[i] for norms in parts) + 1e-4
    kinds = {part["kind"] for part in found["parts"]}
    assert kinds == {"attention", "feed-forward"} | ({"cross-attention"} if session.specials is not None else set())
    model, reading = copy.deepcopy(session.model), session.read(*texts)
    with torch.no_grad():
        before = mean(reading.losses(model.eval(), reading.features(model)))
        block = model.residual_blocks()[0]
        assert isinstance(block, Block)
        block.feedforward.forward = torch.zeros_like
        after = mean(reading.losses(model, reading.features(model)))
    if name != "repeated":  # there the first block is also the third
        first = next(part for part in found["parts"] if part["kind"] == "feed-forward")
        assert first["effect"] == pytest.approx((after or 0) - (before or 0), abs=1e-5)
