"""Sessions: a trace describes itself, the model does not notice, and wrong requests get a sentence."""

from __future__ import annotations

import pytest
import torch
from session_kit import TEXT, gpt, traced, translator

from regard.data import Bytes
from regard.errors import UserError
from regard.generate import Sampling
from regard.look.views.session import Session, capabilities
from regard.models import EncoderConfig, RecurrentConfig
from regard.nn.heads import SpansHeadConfig


def test_a_trace_tells_what_it_holds():
    session, trace = traced("transformer")
    told = trace.about()
    assert told["tokens"][-1] == "<end>"
    assert told["target_tokens"][0] == "<begin>"
    assert told["predicted_tokens"] == [*told["target_tokens"][1:], "<end>"]
    assert [(one["name"], one["layer"], one["query_tokens"], one["key_tokens"]) for one in told["attentions"]] == [
        *((f"encoder.{i}.attention", i, "tokens", "tokens") for i in range(2)),
        *(
            (f"decoder.{i}.{part}", i, "target_tokens", side)
            for i in range(3)
            for part, side in (("attention", "target_tokens"), ("cross", "tokens"))
        ),
    ]
    assert [one["causal"] for one in told["attentions"]] == [False, False, *[True, False] * 3]
    logits = session.model.eval()(*_batch(session.read("the light is on", "so is it in the kitchen")))
    wanted = torch.nn.functional.cross_entropy(logits[0], session.read("x", "so is it in the kitchen").targets)
    assert told["loss"] == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert [one["layer"] for one in traced("repeated")[1].about()["attentions"]] == [0, 1]


def _batch(reading):
    return reading.inputs, reading.source, torch.tensor([reading.source.shape[1]])


@pytest.mark.parametrize("name", ["plain", "transformer"])
def test_nothing_of_it_touches_the_model(name):
    session, _ = traced(name)
    model = session.model.train()
    model.blocks[0].eval()  # a mode of its own must survive
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    random = torch.random.get_rng_state()
    text, other = ("the light is on", "so is it") if session.specials is not None else (TEXT, None)
    trace = session.trace(text, other)
    assert trace.measures
    trace.overview(8)
    trace.rollout()
    trace.cell(0, 0, 1, 0)
    session.lens(text, other)
    session.next(text, Sampling())
    session.beam(text)
    session.ablate(text, [(0, 0)], count=2, target=other)
    if session.specials is None:
        session.patch(TEXT, TEXT, 1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_mistakes_are_told_in_a_sentence():
    session, pair = gpt(), translator("transformer")
    for wrong, words in (
        (lambda: session.trace(""), "the text is empty"),
        (lambda: session.trace("a" * 8193), "the limit is 8,192"),
        (lambda: session.trace("a", "b"), "reads one text"),
        (lambda: pair.trace("a"), "give the translation"),
        (lambda: session.beam("a", beams=99), "1 to 16 beams"),
        (lambda: session.next("a", Sampling(), count=0), "1 to 200 tokens"),
        (lambda: pair.patch("a", "b", 0), "this model translates"),
        (lambda: Session(RecurrentConfig(vocabulary=256).build(), Bytes()).trace("a"), "no attention to look at"),
    ):
        with pytest.raises(UserError, match=words):
            wrong()
    assert capabilities(session.model, translates=False) == {
        **dict.fromkeys(("attention", "sampling", "beam_search", "probes"), True),
        "translation": False,
        "reason": "",
    }
    assert capabilities(pair.model, translates=True)["translation"]
    assert "no blocks" in capabilities(translator("bahdanau").model, translates=True)["reason"]


def test_an_encoder_predicts_the_tokens_that_it_reads():
    """Not the next ones, as a language model does."""
    torch.manual_seed(0)
    session = Session(EncoderConfig(vocabulary=257, context=48, layers=2, heads=2, width=16).build(), Bytes())
    trace, tokens = session.trace(TEXT), torch.tensor(Bytes().encode(TEXT).tolist())
    logits = session.model.eval()(tokens[None])[0]
    assert trace.predicted_tokens == trace.tokens
    assert trace.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, tokens).detach()), rel=1e-5)
    assert len(session.ablate(TEXT, [(0, 1)], count=0)["per_token"]) == len(TEXT)
    ranks = session.lens(TEXT)["target_rank"][-1]
    assert ranks == (logits > logits.gather(1, tokens[:, None])).sum(-1).tolist()


def test_an_encoder_that_predicts_no_tokens_has_attention_but_no_loss() -> None:
    config = EncoderConfig(vocabulary=257, context=48, layers=2, heads=2, width=16, head=SpansHeadConfig())
    model = config.build()
    trace = Session(model, Bytes()).trace("What is it?")
    assert trace.loss is None
    assert trace.target_tokens is None
    assert not model.residual_blocks()
