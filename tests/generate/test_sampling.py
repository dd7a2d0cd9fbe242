"""Sampling: every piece against its definition written out in float64, and against the processors of transformers."""

import functools
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from decoding_kit import naive_shape, naive_softmax, samplings
from hypothesis import assume, given

from regard.generate import Sampling
from regard.generate.sampling import (
    BLOCK,
    PhiloxStreams,
    SamplerState,
    inverse_cdf,
    min_p_filter,
    penalize_repetition,
    top_k_filter,
    top_p_filter,
)

values = st.floats(-20, 20, width=32)
rows = st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=12)


def drawn(pairs) -> tuple[list[float], set[int]]:
    return [x for x, _ in pairs], {token for token, (_, seen) in enumerate(pairs) if seen}


def clear_cut(logits: list[float], seen: set[int], sampling: Sampling) -> bool:
    """Whether no threshold lies within rounding of a value, where two right answers would be possible."""
    before_p = naive_shape(logits, seen, replace(sampling, top_p=1.0, min_p=0.0))
    sums = np.cumsum(np.sort(before_p)[::-1])
    before_min = naive_shape(logits, seen, replace(sampling, min_p=0.0))
    distinct = np.diff(np.sort(before_p[before_p > 0])) / before_p.max()
    return (
        bool(np.all(np.abs(sums - sampling.top_p) > 1e-4))
        and bool(np.all(np.abs(before_min / before_min.max() - sampling.min_p) > 1e-4))
        and bool(np.all(distinct > 1e-6))
    )


@given(rows, samplings)
def test_the_pieces_together_equal_the_definition(pairs, sampling) -> None:
    logits, seen = drawn(pairs)
    sampling = replace(sampling, temperature=sampling.temperature or 1.0)
    assume(clear_cut(logits, seen, sampling) or len(logits) == 1)
    marks = torch.tensor([[token in seen for token in range(len(logits))]])
    want = naive_shape(logits, seen, sampling)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        got = sampling.process(torch.tensor([logits], dtype=dtype), marks).double().softmax(-1)[0].numpy()
        assert np.allclose(got, want, rtol=tolerance, atol=tolerance)
        assert (got > 0).tolist() == (want > 0).tolist()


@given(rows, st.sampled_from([0.3, 0.7, 1.0, 1.6]), st.integers(1, 12), st.sampled_from([0.2, 0.5, 0.9]), st.data())
def test_the_pieces_equal_those_of_transformers(pairs, temperature, k, p, data) -> None:
    pytest.importorskip("transformers")
    from transformers.generation import logits_process as theirs

    logits, seen = drawn(pairs)
    penalty, share = data.draw(st.sampled_from([0.8, 1.2, 2.0])), data.draw(st.sampled_from([0.02, 0.3]))
    sampling = Sampling(temperature, min(k, len(logits)), p, share, penalty)
    assume(clear_cut(logits, seen, sampling) or len(logits) == 1)
    scores, marks = torch.tensor([logits]), torch.tensor([[token in seen for token in range(len(logits))]])
    text = torch.tensor([sorted(seen)], dtype=torch.long)
    pairs = [
        (lambda x: penalize_repetition(x, marks, penalty), theirs.RepetitionPenaltyLogitsProcessor(penalty)),
        (lambda x: x / temperature, theirs.TemperatureLogitsWarper(temperature)),
        (lambda x: top_k_filter(x, k), theirs.TopKLogitsWarper(k)),
        (lambda x: top_p_filter(x, p), theirs.TopPLogitsWarper(p)),
        (lambda x: min_p_filter(x, share), theirs.MinPLogitsWarper(share)),
    ]
    mine = other = scores
    for place, (piece, processor) in enumerate(pairs):  # in this order there too
        if place or seen:
            mine, other = piece(mine), processor(text, other.clone())
        assert torch.allclose(mine, other, rtol=1e-6), type(processor).__name__
    assert torch.allclose(mine, sampling.process(scores, marks), rtol=1e-6) or not seen


def test_worked_examples():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    def left(piece, parameter: float) -> list[int]:
        return piece(logits, parameter)[0].isfinite().nonzero()[:, 0].tolist()

    assert left(top_k_filter, 2) == [0, 1]
    assert left(top_k_filter, 9) == [0, 1, 2, 3]
    assert left(top_p_filter, 0.49) == [0]
    assert left(top_p_filter, 0.51) == [0, 1]  # the smallest set that reaches p, so it may hold more
    assert left(top_p_filter, 0.76) == [0, 1, 2]
    assert left(top_p_filter, 1e-30) == [0]
    assert left(min_p_filter, 0.29) == [0, 1, 2]
    assert left(min_p_filter, 0.51) == [0]
    assert top_p_filter(torch.zeros(1, 4), 0.5)[0].isfinite().tolist() == [True, True, False, False]
    seen = torch.tensor([[True, True, False]])
    assert penalize_repetition(torch.tensor([[3.0, -3.0, 3.0]]), seen, 2.0).tolist() == [[1.5, -6.0, 3.0]]


def test_the_order_of_the_pieces_is_fixed():
    logits, seen = torch.linspace(-2, 3, 12)[None], torch.arange(12)[None] % 3 == 0
    penalized = penalize_repetition(logits, seen, 1.2)
    filtered = min_p_filter(top_p_filter(top_k_filter(penalized / 0.7, 5), 0.9), 0.1)
    assert torch.equal(Sampling(0.7, 5, 0.9, 0.1, 1.2).process(logits, seen), filtered)
    assert torch.equal(Sampling(0, 5, 0.9, 0.1, 1.2).process(logits, seen), penalized)
    assert torch.equal(Sampling(1.0).process(logits, seen), logits)


def draws(rows: int, seed: int = 0, vocabulary: int = 0) -> SamplerState:
    made = SamplerState.start(rows, vocabulary, torch.device("cpu"))
    PhiloxStreams(seed, range(rows)).fill(made)
    return made


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    made = draws(200)
    sampling = Sampling(temperature=0.5)
    chosen = torch.cat([sampling.sample(logits.expand(200, 4), made) for _ in range(BLOCK)])
    shares = torch.bincount(chosen, minlength=4) / len(chosen)
    assert torch.allclose(shares, (logits / 0.5).softmax(-1), atol=0.005)  # 51,200 draws: four deviations are 0.009


@given(st.lists(values, min_size=1, max_size=9), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(logits, share):
    below = np.cumsum(naive_softmax(np.array(logits)))
    assume(np.all(np.abs(below[:-1] - share) > 1e-9))
    got = inverse_cdf(torch.tensor([logits], dtype=torch.float64), torch.tensor([[share]], dtype=torch.float64))
    assert got.tolist() == [int(np.searchsorted(below[:-1], share, side="right"))]


@pytest.mark.parametrize("share", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_never_reach_what_was_ruled_out(share, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 40, generator=generator, dtype=dtype)
    logits[:, :7] = logits[:, 30:] = -torch.inf
    chosen = inverse_cdf(logits, torch.full((500, 1), share, dtype=torch.float64))
    assert bool(((chosen >= 7) & (chosen < 30)).all())


def test_the_likeliest_token_and_the_first_of_equals():
    greedy = Sampling(temperature=0, top_k=1, top_p=0.1)
    assert greedy.sample(torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, -2.0]]), draws(2)).tolist() == [1, 0]


def test_what_was_chosen_is_seen():
    made = draws(1, vocabulary=3)
    greedy = Sampling(temperature=0, repetition=10.0)
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    assert [greedy.sample(logits, made).item() for _ in range(3)] == [0, 1, 2]


def test_a_choice_can_be_compiled_whole_and_stays_where_it_is():
    """What a CUDA graph needs: no question to the host, and every address as it was."""
    sampling, made, other = Sampling(0.9, 5, 0.8, 0.01, 1.3), draws(3, vocabulary=7), draws(3, vocabulary=7)
    places = [tensor.data_ptr() for tensor in made]
    compiled = torch.compile(functools.partial(sampling.sample, state=made), fullgraph=True, backend="eager")
    for step in range(BLOCK + 3):  # past the end of a block the numbers come again until the next one is filled
        logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(step))
        assert torch.equal(compiled(logits), sampling.sample(logits, other))
    assert [tensor.data_ptr() for tensor in made] == places


WRONG = [
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"top_k": 0},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_p": float("nan")},
    {"min_p": -0.1},
    {"min_p": 1.0},
    {"repetition": 0.0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_impossible_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Sampling(**wrong)
