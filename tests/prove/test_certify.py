"""Every fault of both lists is named by its claim, every sound model passes, and nothing of a model is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fault_torch import LENGTH, VOCABULARY, MaskedInTraining, Plain, lively
from faults import FAULTS, HEALTHY, small
from torch import Tensor
from unseen import UNSEEN

from regard.attention import LinearConfig, LinformerConfig, LSHConfig
from regard.errors import UserError
from regard.nn.experts.moe import MoEConfig
from regard.prove import CLAIMS, certify

TRACED = [claim for claim in CLAIMS if claim != "export"]  # tracing takes seconds; a few cases below do it


@pytest.mark.parametrize("fault", [*FAULTS, *UNSEEN], ids=lambda fault: fault.name)
def test_a_fault_is_named_by_its_claim(fault):
    found = certify(**fault.make(), claims=[fault.claim])
    assert found.failed == [fault.claim]
    assert any(letter.isdigit() for letter in found.of(fault.claim).evidence) or fault.claim == "tokenizer"


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_a_sound_model_passes(healthy):
    found = certify(**healthy.make(), claims=TRACED)
    assert found.failed == [], str(found)
    assert found.of("future").verdict == ("holds" if healthy.make().get("causal", True) else "not asked")


@pytest.mark.slow
@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_a_sound_model_can_be_exported(healthy):
    assert certify(**healthy.make(), claims=["export"]).failed == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_when_all_is_asked(fault):
    assert fault.claim in certify(**fault.make()).failed


def test_the_evidence_names_the_place_and_the_layer():
    evidence = certify(**FAULTS[0].make(), claims=["future"]).of("future").evidence
    assert "place 1 of 2" in evidence
    assert "row 0, place 0" in evidence
    assert "layers.0" in evidence


def test_parts_that_decline_are_named_with_their_reason():
    summed = certify(model=lively(small(attention=LinformerConfig()).build()), claims=["step"])
    assert summed.of("step").verdict == "not asked"
    assert "Linformer" in summed.of("step").evidence
    crowded = certify(model=lively(small(feedforward=MoEConfig(capacity=1.0)).build()), claims=["batching", "future"])
    assert crowded.failed == []
    assert "CapacityExperts" in crowded.of("batching").evidence


@pytest.mark.parametrize("attention", [LinearConfig(), LSHConfig(buckets=4)], ids=["linear", "lsh"])
def test_other_attentions_keep_their_claims(attention):
    found = certify(model=lively(small(attention=attention).build()), claims=["future", "padding", "batching", "step"])
    assert found.failed == [], str(found)


class Counting(Plain):
    """It counts its calls, and has a mode, a gradient and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(tokens)


def test_nothing_of_the_model_is_changed():
    model = lively(Counting()).train()
    model.layers[0].eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before, drawn = {name: x.clone() for name, x in model.state_dict().items()}, torch.get_rng_state()
    assert certify(model, vocabulary=VOCABULARY, length=8, claims=["future", "finite", "batching"]).sound
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert model.training
    assert not model.layers[0].training
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert torch.equal(torch.get_rng_state(), drawn)


class MaskedInEvaluation(MaskedInTraining):
    def seen(self, length: int) -> Tensor:
        every = torch.ones(1, 1, length, length, dtype=torch.bool)
        return every if self.training else every.tril()


def test_the_future_is_judged_in_training_too():
    found = certify(lively(MaskedInEvaluation()), vocabulary=VOCABULARY, length=LENGTH, claims=["future"])
    assert "in training" in found.of("future").evidence
    assert not found.sound


def test_a_model_that_breaks_down_does_not_keep_its_claim():
    def narrow(tokens: Tensor) -> Tensor:
        if len(tokens) > 1:
            raise RuntimeError("one row at a time")
        return torch.zeros(*tokens.shape, VOCABULARY)

    found = certify(narrow, vocabulary=VOCABULARY, length=6, claims=["batching"])
    assert "one row at a time" in found.of("batching").evidence
    assert found.failed == ["batching"]


def test_mistakes_are_told_in_a_sentence():
    model: Any = small().build()
    for wrong in ({}, {"model": model, "forward": model}, {"forward": model}, {"model": model, "claims": ["futur"]}):
        with pytest.raises(UserError):
            certify(**wrong)


def test_a_certificate_is_plain_data():
    told = json.loads(json.dumps(certify(**FAULTS[0].make(), claims=["future", "finite"]).plain()))
    assert told["sound"] is False
    assert [claim["verdict"] for claim in told["claims"]] == ["fails", "holds"]
    assert all(claim["says"] and claim["evidence"] for claim in told["claims"])
