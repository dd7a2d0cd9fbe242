"""`approximate`: what is measured is what is said, on models of random weights in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from regard.approximate import Bench, Candidate, measure, trials
from regard.approximate.budgets import available, doubling
from regard.approximate.replacement import (
    AttentionInputs,
    attention_inputs,
    errors,
    fit,
    make_replacement,
    own_outputs,
    replaced,
    unit_vector_weights,
)
from regard.approximate.words import numbers, rows, sentences
from regard.attention import BACKENDS, AttentionConfig, Full, LayerSpec, SoftmaxConfig, WindowConfig
from regard.attention.mechanisms.linformer import LinformerConfig
from regard.attention.mechanisms.masked import TopKConfig
from regard.data import TextBatch
from regard.errors import UserError
from regard.models import GPTConfig
from regard.tasks import LanguageConfig

CONFIG = GPTConfig(vocabulary=11, context=12, layers=3, heads=4, kv_heads=2, width=16, zero_init=False)


def model(config: GPTConfig = CONFIG, seed: int = 0):
    torch.manual_seed(seed)
    made = config.build().double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # attention that is far from even
    return made


def tokens(count: int = 10, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, CONFIG.vocabulary, (count, CONFIG.context), generator=g)


def bench(config: GPTConfig = CONFIG) -> Bench:
    inputs = tokens()
    text = TextBatch(inputs, inputs.roll(-1, 1))
    return Bench(model(config), LanguageConfig().build(), text, torch.device("cpu"))  # type: ignore[arg-type]


def naive(given: AttentionInputs, head: int, sees) -> Tensor:
    """Weights of one head by the formula, a pair at a time: [B, N, N]."""
    q, k = given.q[:, head], given.k[:, head * given.k.shape[1] // given.q.shape[1]]
    batch, length, width = q.shape
    found = q.new_zeros(batch, length, length)
    for b in range(batch):
        for i in range(length):
            seen = [j for j in range(length) if sees(i, j)]
            raw = [math.exp(float(q[b, i] @ k[b, j]) / math.sqrt(width)) for j in seen]
            for j, one in zip(seen, raw, strict=True):
                found[b, i, j] = one / sum(raw)
    return found


def test_errors_are_those_of_the_formula() -> None:
    one = attention_inputs(model(), tokens(2))[1]
    made = make_replacement(WindowConfig(size=3), one, CONFIG.context)
    for head, found in enumerate(errors(2, made, one)):
        whole, near = naive(one, head, lambda i, j: j <= i), naive(one, head, lambda i, j: i - 3 < j <= i)
        v = one.v[:, head // 2]
        assert found.error == pytest.approx(float(((near - whole) @ v).norm() / (whole @ v).norm()), rel=1e-9)
        assert found.variation == pytest.approx(float((near - whole).abs().sum(-1).mean() / 2), rel=1e-9)
        assert (found.layer, found.head) == (2, head + 1)
        assert found.error > 0.01


@settings(max_examples=10)
@given(st.integers(1, 12), st.integers(0, 5), st.sampled_from([WindowConfig, TopKConfig]))
def test_weights_out_of_unit_vectors_are_the_references(size: int, seed: int, kind: type[AttentionConfig]) -> None:
    one = attention_inputs(model(seed=seed), tokens(2, seed))[0]
    config = kind(size)  # type: ignore[call-arg]
    made = make_replacement(config, one, CONFIG.context)
    call = made.mechanism.call(one.q, one.k, one.v, made.plan, weights=True)  # type: ignore[attr-defined]
    want = BACKENDS["reference"].run(call).weights
    torch.testing.assert_close(unit_vector_weights(made.mechanism, one, made.plan), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [WindowConfig(size=12), TopKConfig(k=12), SoftmaxConfig()])
def test_what_cuts_nothing_off_is_exact(config: AttentionConfig) -> None:
    for one in attention_inputs(model(), tokens(2)):
        assert all(head.error < 1e-12 > head.variation for head in errors(1, make_replacement(config, one, 12), one))


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_swapped_model_is_the_one_built_that_way_and_is_put_back(repeat: int) -> None:
    config = replace(CONFIG, repeat=repeat)
    mine, window = model(config), WindowConfig(size=4)
    built = model(replace(config, attention=window))
    built.load_state_dict(mine.state_dict())
    before = mine(tokens())
    mechanisms = {i: window.mechanism(sizes()) for i in range(config.layers // repeat)}
    with replaced(mine, window, mechanisms):
        found = mine(tokens())
    torch.testing.assert_close(found, built(tokens()), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, before)
    assert torch.equal(mine(tokens()), before)


def sizes() -> LayerSpec:
    return LayerSpec(CONFIG.heads, 2, CONFIG.width // CONFIG.heads, CONFIG.context)


def test_one_block_alone_is_replaced() -> None:
    """A window in the last layer changes nothing before it."""
    mine, window = model(), WindowConfig(size=1)
    every = {i: window.mechanism(sizes()) for i in range(3)}
    before = attention_inputs(mine, tokens())
    with replaced(mine, window, {2: every[2]}):
        after = attention_inputs(mine, tokens())
    assert all(torch.equal(a.v, b.v) for a, b in zip(before, after, strict=True))
    assert [one.plan.mask == before[0].plan.mask for one in after] == [True, True, False]


def test_the_loss_is_the_cross_entropy() -> None:
    one = bench()
    logits = one.model(one.text.inputs).detach()
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), one.text.targets.flatten())
    assert sum(one.losses()) / len(one.text.inputs) == pytest.approx(float(want), rel=1e-9)


def test_linformer_is_measured_without_the_mask_and_never_put_into_the_model() -> None:
    trial = [Candidate("linformer", (("k", k),), LinformerConfig(k=k)) for k in (3, 12)]
    sweep = measure(bench(), trial)
    few, all_of_them = sweep.outcomes
    assert "without a mask, with its own parameters fitted to other windows of the text)" in sentences(sweep)[1]
    assert few.loss is few.tokens_per_second is None
    assert not few.causal
    assert few.fitted
    assert "mixes the future" in (few.not_in_model or "")
    assert few.error > 0.05
    assert all_of_them.error < 1e-12, "as many summaries as tokens are the identity"


@pytest.mark.parametrize("k", [2, 6])
def test_fitting_never_harms_the_windows_that_judge_it(k: int) -> None:
    one = attention_inputs(model(), tokens(8))[0]
    made = make_replacement(LinformerConfig(k=k), one, CONFIG.context)
    assert isinstance(made.mask, Full)
    want = own_outputs(one, made.mask)[0]

    def miss() -> float:
        found = made.mechanism(one.q, one.k, one.v, made.plan).values
        return float((found - want)[-2:].detach().square().mean())

    before = miss()
    assert fit(made, one)
    assert miss() <= before
    assert miss() < before or k == 6, "with so few summaries something can be learned"
    assert not fit(make_replacement(WindowConfig(size=3), one, CONFIG.context), one)  # nothing of its own


def test_a_refusal_is_an_outcome_and_a_sentence() -> None:
    capped = replace(CONFIG, attention=SoftmaxConfig(cap=5.0))  # a bias on the scores, which linformer has not
    sweep = measure(bench(capped), trials(["linformer", "window"], ["linformer=4", "window=4"], 12, 4))
    refused, window = sweep.outcomes
    assert "bias" in (refused.refused or "")
    assert window.loss is not None
    assert any(text.startswith("linformer cannot be used in this model: ") for text in sentences(sweep))
    assert rows(sweep)[0][2] == "refused"
    assert numbers(sweep)["outcomes"][0]["error"] is None


def test_each_layer_alone_costs_what_it_costs() -> None:
    one = bench()
    (found,) = measure(one, trials(["window"], ["window=2"], 12, 4), each_layer=True).outcomes
    assert len(found.loss_by_block) == 3
    before = one.losses()
    with replaced(one.model, WindowConfig(size=2), {i: WindowConfig(size=2).mechanism(sizes()) for i in range(3)}):
        more = torch.tensor(one.losses(), dtype=torch.float64) - torch.tensor(before, dtype=torch.float64)
    assert found.more_margin == pytest.approx(1.96 * float(more.std()) / len(before) ** 0.5)
    config = WindowConfig(size=2)
    for block, loss in enumerate(found.loss_by_block):
        with replaced(one.model, config, {block: config.mechanism(sizes())}):
            assert sum(one.losses()) / len(one.text.inputs) == pytest.approx(loss, rel=1e-12)


def test_budgets_double_and_are_combined() -> None:
    assert doubling(64) == [4, 8, 16, 32, 64]
    assert doubling(1) == [1]
    found = trials(["window", "topk"], ["topk.k=2,4", "topk.softness=0,0.5"], 64, 16)
    assert [one.budget for one in found[:5]] == ["2", "4", "8", "16", "32"]
    assert [one.budget for one in found[5:]] == [
        "k 2, softness 0", "k 2, softness 0.5", "k 4, softness 0", "k 4, softness 0.5",
    ]  # fmt: skip
    once = [one.kind for one in trials(None, ["window=4"], 64, 16)]
    assert once.count("window") == 1
    assert once.count("topk") == 4
    everything = {one.kind for one in trials(None, [], 64, 16)}
    assert {"window", "topk", "linformer"} <= everything <= set(available())


WRONG = {
    "windo": ((["windo"], []), "did you mean window"),
    "softmax": ((["softmax"], []), "reference for the others"),
    "form": ((["window"], ["window"]), "KIND=8,16,32"),
    "knob": ((["window"], ["window.width=3"]), "window.size"),
    "other": ((["window"], ["topk=3"]), "add it to --kinds"),
    "value": ((["window"], ["window=wide"]), "size"),
    "zero": ((["window"], ["window=0"]), "at least 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_a_budget_is_a_sentence(case: str) -> None:
    (kinds, budgets), words = WRONG[case]
    with pytest.raises(UserError, match=words):
        trials(kinds, budgets, 64, 16)


def test_speed_is_measured_on_as_many_tokens_as_one_says() -> None:
    inputs, task = tokens(), LanguageConfig().build()
    text = TextBatch(inputs, inputs)
    one = Bench(model(), task, text, torch.device("cpu"), windows=3, timed=50)  # type: ignore[arg-type]
    assert one.timed.tolist() == [inputs.flatten()[:50].tolist()]
    (found,) = measure(one, trials(["window"], ["window=2"], 12, 4)).outcomes
    assert found.tokens_per_second
    assert found.exact_tokens_per_second
    with pytest.raises(UserError, match="this text has 120"):
        Bench(model(), task, text, torch.device("cpu"), timed=121)  # type: ignore[arg-type]


def test_a_text_too_short_and_a_model_without_exact_attention_are_sentences() -> None:
    one = tokens(1)
    with pytest.raises(UserError, match="shorter than two windows"):
        Bench(model(), LanguageConfig().build(), TextBatch(one, one), torch.device("cpu"))  # type: ignore[arg-type]
