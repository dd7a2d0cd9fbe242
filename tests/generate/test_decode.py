"""Decoding: cached equals uncached, rows do not disturb each other, seeds repeat, and the context is never exceeded."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.generate import Sampling, decode
from regard.models import GPTConfig

CONFIG = GPTConfig(vocabulary=11, context=16, layers=2, heads=2, width=16, ngrams=2, zero_init=False)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = CONFIG.build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # far from uniform, so that a wrong cache changes the choice
    return model


GREEDY = Sampling(temperature=0)


def text(model, prompt, count, sampling=GREEDY, seed=1):
    return [row[0] for row in decode(model, [prompt], count, sampling, seed=seed, context=CONFIG.context)]


def test_greedy_equals_the_full_forward_pass(model):
    tokens = [3, 1, 4]
    for expected in text(model, tokens, 13):
        assert model(torch.tensor([tokens]))[0, -1].argmax().item() == expected
        tokens.append(expected)


def test_beyond_the_context_it_goes_on_from_the_latest_half(model):
    seen = [3, 1, 4]
    made = text(model, seen, 60)
    assert len(made) == 60
    window = list(seen)
    for token in made:
        if len(window) > CONFIG.context:
            window = window[-CONFIG.context // 2 :]
        assert model(torch.tensor([window]))[0, -1].argmax().item() == token
        window.append(token)


def test_a_long_prompt_is_read_from_its_end(model):
    long = [i % 11 for i in range(40)]
    assert text(model, long, 1) == text(model, long[-CONFIG.context :], 1)


@given(st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=9), min_size=2, max_size=4))
def test_many_prompts_at_once_equal_each_alone(model, prompts):
    together = list(decode(model, prompts, 5, GREEDY, context=CONFIG.context))
    for i, prompt in enumerate(prompts):
        assert [row[i] for row in together] == text(model, prompt, 5)


def test_the_seed_decides_the_sample(model):
    warm = Sampling(temperature=30.0)
    assert text(model, [1], 40, warm, seed=7) == text(model, [1], 40, warm, seed=7)
    assert text(model, [1], 40, warm, seed=7) != text(model, [1], 40, warm, seed=8)


def test_sampling_follows_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    noise = torch.Generator().manual_seed(0)
    chosen = Sampling(temperature=0.5).choose(logits.expand(40_000, 4), noise)
    shares = torch.bincount(chosen, minlength=4) / 40_000
    assert torch.allclose(shares, (logits / 0.5).softmax(-1), atol=0.01)


def test_top_k_draws_from_the_best_only():
    noise = torch.Generator().manual_seed(0)
    chosen = Sampling(temperature=5.0, top_k=2).choose(torch.tensor([0.0, 1.0, 2.0, -1.0]).expand(500, 4), noise)
    assert set(chosen.tolist()) == {1, 2}


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(UserError, match="prompt is empty"):
        text(model, [], 3)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}])
def test_impossible_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        Sampling(**wrong)
