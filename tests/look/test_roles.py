"""The roles and measures of heads."""

from __future__ import annotations

import pytest
import torch
from session_kit import dense, traced

from regard.attention import (
    Causal,
    Range,
    Softmax,
)
from regard.look.capture.observe import Attention
from regard.look.statistics.measures import random_scores, random_text, role


def test_roles_are_told_from_scores():
    text = random_text(100, 64)
    assert text is not None
    assert text.shape == (2, 64)
    assert torch.equal(text[:, :32], text[:, 32:])
    assert len(set(text[0, :32].tolist())) == 32
    tokens = 30 * torch.eye(100)[text][:, None]  # [2, 1, 64, 100]
    places = 30 * torch.eye(100)[torch.arange(64)].expand(2, 1, 64, 100)

    def score(q, k):
        mechanism = Softmax(scale=1.0)
        (scores,) = random_scores(Attention("one", mechanism, q, k, mechanism.plan(Causal(), Range(64), like=q)))
        return scores

    before = torch.roll(tokens, 1, dims=2)  # a key that knows the token before it
    before[:, :, 0] = 0
    found = score(tokens, before)
    assert found["induction"] == pytest.approx(1, abs=1e-3)
    found = score(torch.roll(places, 1, dims=2), places)
    assert found["positional"] == pytest.approx(1, abs=1e-3)
    assert found["induction"] < 0.01
    assert score(tokens, torch.randn(tokens.shape))["positional"] < 0.5
    assert role({"previous": 0.2, "induction": 0.7, "sink": 0.1, "positional": 0.9, "self": 0.0}) == "induction"
    assert role({"previous": 0.2, "induction": None, "sink": 0.1, "positional": 0.9, "self": 0.0}) == "positional"
    assert role({"previous": 0.2, "induction": None, "sink": 0.1, "positional": None, "self": 0.0}) == "mixed"
    spread = {"previous": 0.2, "induction": 0.0, "sink": 0.1, "positional": 0.4, "self": 0.1}
    assert role(spread, 0.5, {"head": 0.1, "previous": 0.02, "duplicate": 0.06, "sink": 0.0}) == "duplicate"
    assert role(spread, 0.5, {"head": 0.001, "previous": 0.002}) == "idle"
    assert role(spread, 0.95, {}) == "even"


def test_measures_of_every_head():
    _, trace = traced("plain")
    found = trace.measures["heads"]
    assert [(one["attention"], one["head"]) for one in found] == [(a, h) for a in range(2) for h in range(4)]
    for one in found:
        weights = dense(trace.attentions[one["attention"]])[one["head"]]
        assert one["entropy"] == pytest.approx(float(torch.special.entr(weights).sum(-1)[1:].mean()), abs=1e-4)
        assert one["roles"]["self"] == pytest.approx(float(weights.diagonal()[1:].mean()), abs=1e-4)
        assert one["roles"]["sink"] == pytest.approx(float(weights[1:, 0].mean()), abs=1e-4)
        assert all(0 <= score <= 1 + 1e-6 for score in one["roles"].values())
        assert 0 <= one["uniformity"] <= 1 + 1e-6
    pair = traced("transformer")[1].measures["heads"]
    assert {one["roles"]["induction"] for one in pair} == {None}
