"""Decoding: equal to its definition for every model, batch, memory and way to sample; the context is never exceeded."""

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from decoding_kit import VOCABULARY, models, naive_decode, prompts, samplings, seeds, wild
from hypothesis import given

from regard.attention import WindowConfig
from regard.errors import UserError
from regard.generate import Sampling, sampling_decoder
from regard.generate.cuda_graph import MIN_TOKENS, graph_refusal
from regard.generate.sampling import BLOCK
from regard.models import GPT, ConvolutionConfig, GPTConfig, RecurrentConfig
from regard.nn.experts.moe import MoEConfig

CONFIG = GPTConfig(vocabulary=VOCABULARY, context=16, layers=2, heads=2, width=16, ngrams=2, zero_init=False)
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model():
    return wild(CONFIG, 0)


def decode(*arguments, **options):
    return torch.stack(list(sampling_decoder(*arguments, **options)), 1).tolist()


def text(model, prompt, count, sampling=GREEDY, **options):
    return decode(model, [prompt], count, sampling, **options)[0]


RAN: Counter[str] = Counter()


@given(models(), st.lists(prompts, min_size=1, max_size=4), samplings, seeds, st.integers(1, 30), st.data())
def test_a_batch_with_memories_equals_each_row_alone_without(
    model: GPT, rows: list[list[int]], sampling: Sampling, seed: int, count: int, data: st.DataObject
) -> None:
    """Windowed and rolling memories, grouped heads, n-grams, ragged prompts, texts many times the context."""
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=2), label="again")
    streams = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)), label="streams")
    context = model.config.context
    together = decode(model, rows, count, sampling, seed=seed, streams=streams)
    for i, (prompt, stream) in enumerate(zip(rows, streams, strict=True)):
        assert together[i] == naive_decode(model, prompt, count, sampling, seed, stream)
    lengths = [min(len(row), context) for row in rows]
    RAN["cases"] += 1
    RAN["ragged"] += len(set(lengths)) > 1
    RAN["slides apart"] += len(set(lengths)) > 1 and max(lengths) + count > context + 1
    RAN["drawn"] += not sampling.greedy
    RAN["windowed"] += isinstance(model.config.attention, WindowConfig)


def test_the_law_met_every_kind_of_case() -> None:
    if RAN["cases"] < 20:
        pytest.skip("the law did not run here")
    for kind in ("ragged", "slides apart", "drawn", "windowed"):
        assert RAN[kind] >= 0.05 * RAN["cases"], RAN


@given(models(), st.lists(prompts, min_size=2, max_size=5), samplings, seeds, st.data())
def test_rows_that_leave_change_nothing_for_those_that_stay(
    model: GPT, rows: list[list[int]], sampling: Sampling, seed: int, data: st.DataObject
) -> None:
    streams = list(range(len(rows)))
    decoder = sampling_decoder(model, rows, 24, sampling, seed=seed, streams=streams)
    before = [decoder.next().tolist() for _ in range(data.draw(st.integers(0, 12), label="before"))]
    stay = data.draw(st.lists(st.sampled_from(streams), min_size=1, unique=True), label="stay")
    decoder.keep(stay)
    assert decoder.prompts == stay
    after = [tokens.tolist() for tokens in decoder]
    for place, row in enumerate(stay):
        got = [tokens[row] for tokens in before] + [tokens[place] for tokens in after]
        assert got == naive_decode(model, rows[row], 24, sampling, seed, row)


def test_beyond_a_block_of_draws_and_with_fewer_rows(model):
    """The numbers of a later block are drawn for the rows that are left."""
    warm, rows = Sampling(temperature=2.0), [[1, 2], [3], [4, 5, 6]]
    count = BLOCK + 20
    decoder = sampling_decoder(model, rows, count, warm, seed=3, streams=[5, 6, 7])
    for _ in range(9):
        decoder.next()
    decoder.keep([2, 1])
    after = torch.stack(list(decoder), 1).tolist()
    want = [naive_decode(model, rows[row], count, warm, 3, stream)[9:] for row, stream in ((2, 7), (1, 6))]
    assert after == want


def test_more_tokens_are_only_more(model):
    warm = Sampling(temperature=2.0)
    assert text(model, [1, 2], 30, warm) == text(model, [1, 2], 50, warm)[:30]


def test_a_long_prompt_is_read_from_its_end(model):
    long = [i % VOCABULARY for i in range(40)]
    warm = Sampling(temperature=2.0)
    assert text(model, long, 30, warm) == text(model, long[-CONFIG.context :], 30, warm)
    assert text(model, long, 30, warm) != text(model, long[-CONFIG.context + 1 :], 30, warm)


def test_the_seed_and_the_stream_decide_the_sample(model):
    warm = Sampling(temperature=30.0)
    assert text(model, [1], 40, warm, seed=7) == text(model, [1], 40, warm, seed=7)
    assert text(model, [1], 40, warm, seed=7) != text(model, [1], 40, warm, seed=8)
    assert text(model, [1], 40, warm, streams=[0]) != text(model, [1], 40, warm, streams=[1])
    assert text(model, [1], 40, warm, seed=-1) != text(model, [1], 40, warm, seed=1)


@pytest.fixture
def processed(model, monkeypatch):
    """The shapes of all tokens that the model processes."""
    shapes, step = [], model.step

    def counting(tokens, state, lengths=None, *, last=False):
        shapes.append(tuple(tokens.shape))
        return step(tokens, state, lengths, last=last)

    monkeypatch.setattr(model, "step", counting)
    return shapes


def test_a_prompt_is_processed_once_however_many_samples_it_has(model, processed):
    decode(model, [[1, 2, 3]] * 5, 4, Sampling(), streams=range(5))
    assert processed == [(1, 3), (5, 1), (5, 1), (5, 1)]  # and nothing is processed that no token needs


def test_only_full_rows_are_processed_again(model, processed):
    decode(model, [[1] * 16, [1] * 12], 4, GREEDY)
    assert processed == [(2, 16), (1, 7), (2, 1), (2, 1), (2, 1)]
    processed.clear()
    decode(model, [[1] * 16, [1] * 15], 4, GREEDY)
    assert processed == [(2, 16), (1, 7), (2, 1), (1, 7), (2, 1), (2, 1)]  # each at its own time


def test_decoding_leaves_no_trace_in_the_model(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    text(model, [1, 2], 30, Sampling(repetition=1.5))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model(torch.tensor([[1, 2]])).sum().backward()  # no inference tensor stayed in it
    model.zero_grad()


@pytest.mark.parametrize("wrong", [[], [[]], [[1], []]])
def test_an_empty_prompt_is_refused(model, wrong):
    with pytest.raises(UserError, match="prompt is empty"):
        decode(model, wrong, 3, GREEDY)


def test_no_more_than_was_asked_for(model):
    decoder = sampling_decoder(model, [[1]], 1, GREEDY)
    decoder.next()
    with pytest.raises(ValueError, match="finished after 1 tokens"):
        decoder.next()


SIZES: Any = {"vocabulary": VOCABULARY, "context": 16, "layers": 1, "width": 16}


def test_a_step_is_captured_where_the_model_allows_it():
    """The decision about CUDA graphs, which needs no GPU."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    for config in (GPTConfig(**SIZES, heads=2), ConvolutionConfig(**SIZES)):
        model = config.build()
        assert graph_refusal(model, cuda, 100) is None
        assert "on cpu" in (graph_refusal(model, cpu, 100) or "")
        assert f"{MIN_TOKENS} tokens or more" in (graph_refusal(model, cuda, MIN_TOKENS - 1) or "")
    experts = GPTConfig(**SIZES, heads=2, feedforward=MoEConfig(experts=4, active=2)).build()
    assert "blocks.0.feedforward" in (graph_refusal(experts, cuda, 100) or "")  # no grouped kernel in float32
    refusal = graph_refusal(RecurrentConfig(**SIZES).build(), cuda, 100)
    assert refusal == "a step of RecurrentModel cannot be captured in a CUDA graph"


@pytest.mark.parametrize("config", [RecurrentConfig(**SIZES), ConvolutionConfig(**SIZES)], ids=lambda c: c.kind)
def test_a_model_that_cannot_be_captured_decodes_eagerly(config, monkeypatch):
    """As on a CUDA device, where only graphable models may be captured."""
    model = config.build().eval()
    monkeypatch.setattr("regard.generate.cached.GraphedStep", None)  # would fail when called
    assert len(text(model, [1, 2], 40, compiled=True)) == 40
