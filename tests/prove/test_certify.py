"""Every fault is named by its claim, every sound model passes, and nothing of a model is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fault_kit import small
from faults import FAULTS
from faulty_torch import LENGTH, VOCABULARY, MaskedInTraining, Plain, randomized
from healthy_models import HEALTHY
from torch import Tensor, nn

from regard.attention import LinearConfig, LinformerConfig, LSHConfig
from regard.errors import UserError
from regard.nn.experts.moe import MoEConfig
from regard.prove import ModelUnderTest, all_claims, certify, claim, fails, holds

TRACED = [name for name in all_claims() if name != "export"]  # tracing takes seconds; a few cases below do it


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_by_its_claim(fault):
    found = certify(fault.make(), claims=[fault.claim])
    assert found.failed == [fault.claim]
    assert any(letter.isdigit() for letter in found.of(fault.claim).evidence) or fault.claim == "tokenizer"


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_a_sound_model_passes(healthy):
    found = certify(healthy.make(), claims=TRACED)
    assert found.failed == [], str(found)
    assert found.of("future").verdict == ("holds" if healthy.make().causal else "not applicable")


@pytest.mark.slow
@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_a_sound_model_can_be_exported(healthy):
    assert certify(healthy.make(), claims=["export"]).failed == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.listed], ids=lambda fault: fault.name)
def test_a_fault_is_named_when_all_is_asked(fault):
    assert fault.claim in certify(fault.make()).failed


def test_the_evidence_names_the_place_and_the_layer():
    evidence = certify(FAULTS[0].make(), claims=["future"]).of("future").evidence
    assert "position 1 of 2" in evidence
    assert "row 0, position 0" in evidence
    assert "layers.0" in evidence


def test_parts_that_decline_are_named_with_their_reason():
    summed = certify(randomized(small(attention=LinformerConfig()).build()), claims=["step"])
    assert summed.of("step").verdict == "not applicable"
    assert "Linformer" in summed.of("step").evidence
    crowded = certify(randomized(small(feedforward=MoEConfig(capacity=1.0)).build()), claims=["batching", "future"])
    assert crowded.failed == []
    assert "CapacityExperts" in crowded.of("batching").evidence


@pytest.mark.parametrize("attention", [LinearConfig(), LSHConfig(buckets=4)], ids=["linear", "lsh"])
def test_other_attentions_keep_their_claims(attention):
    found = certify(randomized(small(attention=attention).build()), claims=["future", "padding", "batching", "step"])
    assert found.failed == [], str(found)


class Counting(Plain):
    """It counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(tokens)


def test_nothing_of_the_model_is_changed():
    model = randomized(Counting()).train()
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
    found = certify(randomized(MaskedInEvaluation()), vocabulary=VOCABULARY, length=LENGTH, claims=["future"])
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


def test_mistakes_are_user_errors():
    model: Any = small().build()
    with pytest.raises(UserError, match="vocabulary="):
        certify(lambda tokens: tokens)
    with pytest.raises(UserError, match="no claim 'futur'"):
        certify(model, claims=["futur"])


def test_a_claim_from_outside_the_package(monkeypatch):
    monkeypatch.setattr("regard.prove.registry._registered", dict(all_claims()))

    @claim("bounded", "no logit exceeds 100")
    def bounded(subject: ModelUnderTest) -> Any:
        largest = float(subject(subject.tokens(2)).detach().abs().max())
        return holds(f"{largest:.3g}") if largest <= 100 else fails(f"{largest:.3g}")

    assert [*all_claims()][-1] == "bounded"
    model: Any = small().build()
    assert certify(model, claims=["bounded"]).of("bounded").statement == "no logit exceeds 100"
    with pytest.raises(ValueError, match="'future' is registered by"):
        claim("future", "another")(bounded)


def test_a_certificate_is_plain_data():
    certificate = json.loads(json.dumps(certify(FAULTS[0].make(), claims=["future", "finite"]).plain()))
    assert certificate["sound"] is False
    assert [claim["verdict"] for claim in certificate["claims"]] == ["fails", "holds"]
    assert all(claim["statement"] and claim["evidence"] for claim in certificate["claims"])


class PositionTable(nn.Embedding):
    """A table that is given the shape of the tokens, as RoFormer's positions in `transformers` are."""

    def forward(self, shape: torch.Size) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(shape[1]))


def test_a_table_that_is_given_a_shape():
    class Averages(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.positions, self.head = nn.Embedding(20, 8), PositionTable(32, 8), nn.Linear(8, 20)

        def forward(self, tokens: Tensor) -> Tensor:
            x = (self.embed(tokens) + self.positions(tokens.shape)).cumsum(1)
            return self.head(x)

    torch.manual_seed(1)
    found = certify(Averages(), vocabulary=20, length=12, claims=["future"])
    assert found.sound, found.of("future").evidence
