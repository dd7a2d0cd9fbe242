"""Rows and cells: each number between a query and a key is the one that the model computes."""

from __future__ import annotations

import pytest
import torch
from session_kit import LANGUAGE, PAIRS, TEXT, dense, gpt, traced

from regard.attention import (
    AttentionConfig,
    LinearConfig,
    LSHConfig,
    SegmentsConfig,
    SoftmaxConfig,
    TalkingConfig,
    TopKConfig,
)
from regard.attention.normalizer import SigmoidConfig
from regard.errors import UserError
from regard.look.capture.observe import Attention


@pytest.mark.parametrize("name", [*LANGUAGE, *PAIRS])
def test_a_cell_is_worked_out_and_its_row_mixes_what_the_model_mixed(name):
    session, trace = traced(name)
    mixed: dict[str, list[torch.Tensor]] = {}
    for path, module in session.model.named_modules():
        if path in {one.name for one in trace.attentions}:
            module.register_forward_hook(
                lambda _, __, out, path=path: mixed.setdefault(path, []).append(out.values.detach())
            )
    if session.specials is not None:
        session.read("the light is on", "so is it in the kitchen").features(session.model.eval())
    else:
        session.read(TEXT).features(session.model.eval())
    for number, one in enumerate(trace.attentions):
        assert isinstance(one, Attention)
        steps, use = mixed[one.name], [o.name for o in trace.attentions[:number]].count(one.name)
        whole = torch.cat(steps, 2) if steps[0].shape[2] != one.q.shape[2] else steps[use]
        weights = dense(one)
        for head, query in ((0, 0), (one.q.shape[1] - 1, one.q.shape[2] - 1)):
            row = trace.row(number, head, query)
            assert sum(weight for _, weight in row["weights"]) == pytest.approx(1, abs=1e-5)
            for key, weight in row["weights"]:
                assert weight == pytest.approx(float(weights[head, query, key]), abs=1e-5)
            for key in {row["weights"][0][0], 0, one.k.shape[2] - 1}:
                cell = trace.cell(number, head, query, key)
                assert sum(cell["terms"]) == pytest.approx(cell["dot"], abs=1e-3)
                assert cell["dot"] * cell["scale"] == pytest.approx(cell["scaled"])
                assert cell["scaled"] + (cell["bias"] or 0) == pytest.approx(cell["biased"], abs=1e-4)
                assert (cell["bias"] is None) == (one.mechanism.bias is None)
                assert cell["exp"] / cell["sum"] == pytest.approx(cell["weight"], abs=1e-5)
                assert cell["weight"] == pytest.approx(float(weights[head, query, key]), abs=1e-5)
                assert cell["allowed"] == (cell["reason"] is None)
                assert cell["allowed"] or cell["weight"] == 0
                assert cell["contribution"] == pytest.approx([cell["weight"] * v for v in cell["v"]], abs=1e-5)
                assert cell["output"] == pytest.approx(whole[0, head, query].tolist(), abs=1e-4)


def test_what_is_hidden_says_why():
    trace = gpt(attention=TopKConfig(3)).trace(TEXT)
    assert trace.cell(0, 0, 2, 9)["reason"] == "the mask hides it"
    last = trace.row(0, 0, 40)
    assert last["visible_keys"] == 41
    assert len(last["weights"]) == 3
    missed = next(key for key in range(41) if key not in dict(last["weights"]))
    assert trace.cell(0, 0, 40, missed)["reason"] == "it is not among the 3 best keys"


@pytest.mark.parametrize(
    "attention",
    [LinearConfig(), LSHConfig(buckets=4), TalkingConfig(), SoftmaxConfig(normalizer=SigmoidConfig()), TopKConfig(3)],
    ids=lambda config: config.kind,
)
def test_every_mechanism_with_weights_is_shown(attention: AttentionConfig) -> None:
    """Also those whose weights do not follow from one score per head and pair."""
    trace = gpt(attention=attention).trace(TEXT)
    (one, *_), mechanism = trace.attentions, trace.attentions[0].mechanism
    assert isinstance(one, Attention)
    want = mechanism.weights(one.q, one.k, one.plan)
    assert want is not None
    row = trace.row(0, 1, 5)["weights"]
    got = torch.zeros(want.shape[-1])
    for key, weight in row:
        got[key] = weight
    torch.testing.assert_close(got, want[0, 1, 5], atol=1e-5, rtol=1e-4)


def test_mechanisms_without_weights_are_listed_with_a_reason():
    session = gpt(attention=SegmentsConfig(size=8, memory=4, summaries=2), global_every=2)
    trace = session.trace(TEXT)
    first, second = trace.about()["attentions"]
    assert (first["exact"], second["exact"]) == (False, True)
    assert "weighs sums of several keys" in first["reason"]
    picture, ready = trace.overview(8)
    assert ready == 2
    assert not picture[0].any()
    assert picture[1].any()
    with pytest.raises(UserError, match="no map to show"):
        trace.row(0, 0, 0)
    assert {one["attention"] for one in trace.measures["heads"]} == {1}
    with pytest.raises(UserError, match="rollout needs every layer"):
        trace.rollout()
    assert session.ablate(TEXT, [(0, 1)], count=3)["loss"]["after"] != trace.loss
