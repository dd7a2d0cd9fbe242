"""Sampling and beam search step by step find what `regard generate` and `regard translate` find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from session_kit import MARKS, PAIRS, TEXT, gpt, translator

from regard.attention import (
    WindowConfig,
)
from regard.data import Bytes
from regard.generate import BeamSearch, OutputConstraints, Sampling, decode_seq2seq, sampling_decoder
from regard.look.views.session import Session
from regard.models import RecurrentConfig


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 5, "temperature": 1.3}, {"top_p": 0.7}])
@pytest.mark.parametrize("kind", ["gpt", "recurrent"])
def test_stepping_writes_what_generate_writes(kind, settings):
    session = (
        gpt() if kind == "gpt" else Session(RecurrentConfig(vocabulary=256, context=48, width=16).build(), Bytes())
    )
    sampling, prompt = Sampling(**settings), TEXT[:40]
    tokens = session.read(prompt).inputs[0].tolist()
    model: Any = session.model
    # Beyond the context, where it slides.
    wanted = [int(token) for token in sampling_decoder(model, [tokens], 30, sampling, seed=7)]
    told = session.next(prompt, sampling, count=30, seed=7)
    assert [one["token"] for one in told["continuation"]] == wanted
    assert told["sampled"]["token"] == wanted[0]
    assert told["tokens"] == list(prompt)
    later = tokens + wanted[:5]
    again = sampling_decoder(model, [later], 1, sampling, seed=7)
    shaped = sampling.process(again._logits, torch.zeros(1, 256, dtype=torch.bool)).softmax(-1)[0]
    text = bytes(later).decode("latin-1")
    latin = Session(session.model, _Latin())
    told = latin.next(text, sampling, seed=7, position=5)
    assert told["sampled"]["token"] == wanted[5]
    assert len(told["candidates"]) == 50
    assert [one["logit"] for one in told["candidates"]] == sorted(
        (one["logit"] for one in told["candidates"]), reverse=True
    )
    if settings.get("temperature") != 0:
        chosen = {one["token"]: one["sampling_probability"] for one in told["candidates"]}
        assert chosen == pytest.approx({token: float(shaped[token]) for token in chosen}, abs=1e-6)
    else:
        assert [one["kept"] for one in told["candidates"]] == [True] + [False] * 49
    if "top_k" in settings:
        assert sum(one["kept"] for one in told["candidates"]) == 5
        assert sum(one["sampling_probability"] for one in told["candidates"]) == pytest.approx(1, abs=1e-5)


class _Latin(Bytes):
    """Bytes as the characters of Latin-1, so that any byte a random model draws can be typed."""

    def encode(self, text: str):
        return np.frombuffer(text.encode("latin-1"), np.uint8).astype(np.int64)


def test_the_state_grows_with_the_text_unless_it_is_of_constant_size():
    def held(session: Session, count: int) -> int:
        told = session.next("a" * count, Sampling())["cache"]
        assert told["tokens"] == count
        return told["bytes"]

    assert held(gpt(), 40) > 3 * held(gpt(), 10)
    assert held(gpt(attention=WindowConfig(4)), 40) == held(gpt(attention=WindowConfig(4)), 30)


@pytest.mark.parametrize("kind", PAIRS)
def test_translations_step_and_branch_as_translate_finds_them(kind):
    session = translator(kind)
    source = session.read("the light is on", "x").source
    assert source is not None
    lengths = torch.tensor([source.shape[1]])
    model: Any = session.model.eval()
    constraints = OutputConstraints.of(MARKS, 0, 12)
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=1.2)):
        (wanted,) = decode_seq2seq(model, source, lengths, OutputConstraints.of(MARKS, 0, 32), sampling, seed=3)[0]
        told = session.next("the light is on", sampling, count=32, seed=3, target="")
        assert [one["token"] for one in told["continuation"] if one["token"] != MARKS.end] == wanted.tokens
    found = decode_seq2seq(model, source, lengths, constraints, BeamSearch(beams=3), count=3)[0]
    nodes = session.beam("the light is on", beams=3, length=12)["nodes"]
    ends = {tuple(_path(nodes, node)): node["score"] for node in nodes if node["finished"]}
    for one in found:
        tokens = (*one.tokens, MARKS.end) if one.ended else tuple(one.tokens)
        assert ends[tokens] == pytest.approx(one.logprob, abs=1e-3)


def _path(nodes: list[dict[str, Any]], node: dict[str, Any]) -> list[int]:
    return ([] if node["parent"] is None else _path(nodes, nodes[node["parent"]])) + [node["token"]]


def test_a_tree_of_continuations_keeps_the_likeliest():
    session = gpt()
    nodes = session.beam("the ", beams=4, length=3)["nodes"]
    assert len(nodes) == 12
    model: Any = session.model.eval()
    prompt = session.read("the ").inputs
    for node in nodes:
        path = _path(nodes, node)
        with torch.no_grad():
            logprobs = model(torch.cat((prompt, torch.tensor([path])), 1)).log_softmax(-1)
        total = sum(float(logprobs[0, 3 + i, token]) for i, token in enumerate(path))
        assert node["score"] == pytest.approx(total, abs=1e-3)
    wanted = [int(token) for token in sampling_decoder(model, [prompt[0].tolist()], 3, Sampling(temperature=0.0))]
    alone = session.beam("the ", beams=1, length=3)["nodes"]
    assert [node["token"] for node in alone] == wanted
    assert max(node["score"] for node in nodes if node["finished"]) >= alone[-1]["score"] - 1e-6
