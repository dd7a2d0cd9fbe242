"""Sessions: every number the page shows is one that the model itself would have, and the model does not notice."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention import (
    AttentionConfig,
    LinearConfig,
    LongformerConfig,
    LSHConfig,
    SegmentsConfig,
    SoftmaxConfig,
    TalkingConfig,
    TopKConfig,
    WindowConfig,
)
from regard.attention.normalizer import SigmoidConfig
from regard.data import BpeConfig, Bytes
from regard.data.translation.pairs import Specials
from regard.errors import UserError
from regard.generate import BeamSearch, OutputConstraints, Sampling, decode_seq2seq, sampling_decoder
from regard.look import rows
from regard.look.capture.trace import Attention
from regard.look.views.session import Session, Trace
from regard.models import GPTConfig, RecurrentConfig, Seq2SeqConfig, TransformerConfig
from regard.models.bridges import BahdanauConfig, LuongConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.positions.position import AlibiConfig, LearnedPositionConfig

TINY: dict[str, Any] = {"vocabulary": 256, "context": 48, "layers": 2, "heads": 4, "width": 16, "zero_init": False}
TEXT = "the light in the kitchen is on and so is it"
BPE = BpeConfig(vocabulary=300).build([TEXT * 4])
MARKS = Specials.after(BPE.size)
SIZES: dict[str, Any] = {"vocabulary": BPE.size + 3, "context": 32, "width": 16}


def gpt(**changes: Any) -> Session:
    torch.manual_seed(0)
    model = GPTConfig(**{**TINY, **changes}).build()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(8)  # as decided as a trained model
    return Session(model, Bytes())


def translator(kind: str) -> Session:
    torch.manual_seed(0)
    config = {
        "transformer": lambda: TransformerConfig(**SIZES, layers=2, decoder_layers=3, heads=2),
        "bahdanau": lambda: Seq2SeqConfig(**SIZES, attention=BahdanauConfig()),
        "luong": lambda: Seq2SeqConfig(**SIZES, attention=LuongConfig()),
    }[kind]()
    return Session(config.build(), BPE, MARKS)


LANGUAGE = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "window": {"attention": WindowConfig(5), "global_every": 2},
    "longformer": {"attention": LongformerConfig()},
    "cap": {"attention": SoftmaxConfig(cap=2.0)},
    "alibi": {"position": AlibiConfig()},
    "topk": {"attention": TopKConfig(3)},
    "repeated": {"repeat": 2},
    "reversible": {"block": ReversibleConfig()},
    "learned": {"position": LearnedPositionConfig(), "qk_norm": False},
}
PAIRS = ["transformer", "bahdanau", "luong"]


def traced(name: str) -> tuple[Session, Trace]:
    if name in LANGUAGE:
        session = gpt(**LANGUAGE[name])
        return session, session.trace(TEXT)
    session = translator(name)
    return session, session.trace("the light is on", "so is it in the kitchen")


def dense(attention: Any) -> torch.Tensor:
    """[H, Q, K], by the reference."""
    assert isinstance(attention, Attention)
    return torch.cat([piece.weights for piece in rows(attention)], 2)[0]


@pytest.mark.parametrize("name", [*LANGUAGE, *PAIRS])
def test_a_cell_is_worked_out_and_its_row_mixes_what_the_model_mixed(name):
    session, trace = traced(name)
    mixed: dict[str, list[torch.Tensor]] = {}
    for path, module in session.model.named_modules():
        if path in {one.name for one in trace.attentions}:
            module.register_forward_hook(
                lambda _, __, out, path=path: mixed.setdefault(path, []).append(out.values.detach())
            )
    if session.pair:
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


@pytest.mark.parametrize("name", ["plain", "window", "longformer", "grouped", "transformer", "bahdanau"])
def test_pictures_hold_the_greatest_weight_of_each_tile(name):
    _, trace = traced(name)
    size = 9
    found, ready = trace.overview(size)
    assert ready == len(trace.attentions)
    for number, one in enumerate(trace.attentions):
        weights = dense(one)
        (h, q, k), sides = weights.shape, [-(-n // size) for n in weights.shape[1:]]
        pieces = [[part.amax((1, 2)) for part in row.split(sides[1], 2)] for row in weights.split(sides[0], 1)]
        wanted = torch.stack([torch.stack(row, -1) for row in pieces], 1)
        picture = found[number, :h, : wanted.shape[1], : wanted.shape[2]]
        np.testing.assert_allclose(picture, (255 * wanted.sqrt()).round().numpy(), atol=1)
        assert found[number, :, wanted.shape[1] :].max(initial=0) == 0
        whole = trace.tile(number, h - 1, 0, 0, 0)
        assert whole.shape == (q, k)
        np.testing.assert_allclose(whole, (255 * weights[-1].sqrt()).round().numpy(), atol=1)


def test_tiles_of_a_long_text_fit_together():
    """Three levels of 700 tokens; each cell is the greatest of the four below it."""
    session = gpt(layers=1, width=8, heads=2, context=1024, attention=WindowConfig(90, sinks=1))
    trace = session.trace((TEXT + "\n") * 16)
    length = len(trace.tokens)
    assert length == 704
    weights = dense(trace.attentions[0])[1]
    finest = np.block([[trace.tile(0, 1, 0, r, c) for c in range(3)] for r in range(3)])
    np.testing.assert_allclose(finest, (255 * weights.sqrt()).round().numpy(), atol=1)
    for level in (1, 2):
        finest = np.pad(finest, ((0, finest.shape[0] % 2), (0, finest.shape[1] % 2)))
        finest = finest.reshape(finest.shape[0] // 2, 2, finest.shape[1] // 2, 2).max((1, 3))
        count = -(-finest.shape[0] // 256)
        drawn = np.block([[trace.tile(0, 1, level, r, c) for c in range(count)] for r in range(count)])
        np.testing.assert_allclose(drawn, finest, atol=1)
    with pytest.raises(UserError, match="levels 0 to 2"):
        trace.tile(0, 1, 3, 0, 0)
    with pytest.raises(UserError, match="row is 0 to 2"):
        trace.tile(0, 1, 0, 3, 0)


def test_an_overview_comes_layer_by_layer():
    trace = gpt(layers=3).trace(TEXT)
    whole = gpt(layers=3).trace(TEXT).overview(16)[0]
    for wanted in (1, 2, 3, 3):
        found, ready = trace.overview(16, seconds=0)
        assert ready == wanted
        assert np.array_equal(found[:ready], whole[:ready])
        assert not found[ready:].any()


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
    assert {one["attention"] for one in trace.measures()["heads"]} == {1}
    with pytest.raises(UserError, match="rollout needs every layer"):
        trace.rollout()
    assert session.ablate(TEXT, [(0, 1)], count=3)["loss"]["after"] != trace.loss


@pytest.mark.parametrize("size", [256, 10])
def test_rollout_is_the_product_of_the_layers(size):
    _, trace = traced("plain")
    length = len(trace.tokens)
    wanted = torch.eye(length)
    for one in trace.attentions:
        wanted = (dense(one).mean(0) + torch.eye(length)) / 2 @ wanted
    each = -(-length // size)
    rows_ = torch.stack([part.mean(0) for part in wanted.split(each)])
    wanted = torch.stack([part.sum(1) for part in rows_.split(each, 1)], 1)
    found = trace.rollout(size)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


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


@pytest.mark.parametrize("name", ["plain", "repeated", "reversible", "transformer"])
def test_the_last_layer_of_the_lens_is_the_model(name):
    session, _ = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.pair else (TEXT,)
    told = session.lens(*texts)
    depth = 3 if session.pair else 2
    assert told["layers"] == ["embedding", *map(str, range(1, depth + 1))]
    assert len(told["top"]) == len(told["target_rank"]) == depth + 1
    reading = session.read(*texts)
    with torch.no_grad():
        logits = session.model.eval().head(reading.features(session.model))[0]
    likely = logits.softmax(-1).max(-1)
    assert [one["probability"] for one in told["top"][-1]] == pytest.approx(likely.values.tolist(), abs=1e-4)
    assert [one["text"] for one in told["top"][-1]] == [session._text(token) for token in likely.indices.tolist()]
    ranks = [r for r in told["target_rank"][-1] if r is not None]
    order = logits.argsort(descending=True)
    assert ranks == [order[i].tolist().index(t) for i, t in enumerate(reading.targets.tolist()) if t >= 0]
    assert told["top"][0] != told["top"][-1]


@pytest.mark.parametrize("name", ["plain", "repeated", "grouped", "transformer", "bahdanau", "luong"])
def test_ablation_is_what_zeroed_weights_would_do(name):
    session, trace = traced(name)
    texts = ("the light is on", "so is it in the kitchen") if session.pair else (TEXT, None)
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


def test_roles_are_told_from_scores():
    from regard.attention import Causal, Range, Softmax
    from regard.look.statistics.roles import random_scores, random_text, role

    text = random_text(100, 64)
    assert text is not None
    assert text.shape == (2, 64)
    assert torch.equal(text[:, :32], text[:, 32:])
    assert len(set(text[0, :32].tolist())) == 32
    tokens = 30 * torch.eye(100)[text][:, None]  # [2, 1, 64, 100]
    places = 30 * torch.eye(100)[torch.arange(64)].expand(2, 1, 64, 100)

    def score(q, k):
        mechanism = Softmax(scale=1.0)
        return random_scores(Attention("one", mechanism, q, k, mechanism.plan(Causal(), Range(64), like=q)))

    before = torch.roll(tokens, 1, dims=2)  # a key that knows the token before it
    before[:, :, 0] = 0
    found = score(tokens, before)
    assert found["induction"] == pytest.approx([1], abs=1e-3)
    found = score(torch.roll(places, 1, dims=2), places)
    assert found["positional"] == pytest.approx([1], abs=1e-3)
    assert found["induction"][0] < 0.01
    assert score(tokens, torch.randn(tokens.shape))["positional"][0] < 0.5
    assert role({"previous": 0.2, "induction": 0.7, "sink": 0.1, "positional": 0.9, "self": 0.0}) == "induction"
    assert role({"previous": 0.2, "induction": None, "sink": 0.1, "positional": 0.9, "self": 0.0}) == "positional"
    assert role({"previous": 0.2, "induction": None, "sink": 0.1, "positional": None, "self": 0.0}) == "mixed"


def test_measures_of_every_head():
    _, trace = traced("plain")
    found = trace.measures()["heads"]
    assert [(one["attention"], one["head"]) for one in found] == [(a, h) for a in range(2) for h in range(4)]
    for one in found:
        weights = dense(trace.attentions[one["attention"]])[one["head"]]
        assert one["entropy"] == pytest.approx(float(torch.special.entr(weights).sum(-1)[1:].mean()), abs=1e-4)
        assert one["roles"]["self"] == pytest.approx(float(weights.diagonal()[1:].mean()), abs=1e-4)
        assert one["roles"]["sink"] == pytest.approx(float(weights[1:, 0].mean()), abs=1e-4)
        assert all(0 <= score <= 1 + 1e-6 for score in one["roles"].values())
        assert 0 <= one["uniformity"] <= 1 + 1e-6
    pair = traced("transformer")[1].measures()["heads"]
    assert {one["roles"]["induction"] for one in pair} == {None}


@pytest.mark.parametrize("name", ["plain", "transformer"])
def test_nothing_of_it_touches_the_model(name):
    session, _ = traced(name)
    model = session.model.train()
    model.blocks[0].eval()  # a mode of its own must survive
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    random = torch.random.get_rng_state()
    text, other = ("the light is on", "so is it") if session.pair else (TEXT, None)
    trace = session.trace(text, other)
    trace.measures()
    trace.overview(8)
    trace.rollout()
    trace.cell(0, 0, 1, 0)
    session.lens(text, other)
    session.next(text, Sampling())
    session.beam(text)
    session.ablate(text, [(0, 0)], count=2, target=other)
    if not session.pair:
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
    assert session.capabilities() == {
        **dict.fromkeys(("attention", "sampling", "beam_search", "probes"), True),
        "translation": False,
        "reason": "",
    }
    assert pair.capabilities()["translation"]
    assert "no blocks" in translator("bahdanau").capabilities()["reason"]
