"""Normalizers: each against a simple oracle, with its gradient, and as a model's choice."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from dense_kit import learns_and_decodes
from hypothesis import given
from torch import Tensor

from regard.attention import (
    Causal,
    Entmax,
    HardLookup,
    Normalizer,
    NormalizerConfig,
    Sigmoid,
    Softmax,
    SoftmaxConfig,
    SoftmaxNormalizer,
    TopKSoftmax,
    attend,
)
from regard.attention.normalizer import EntmaxConfig, SigmoidConfig, SoftmaxNormalizerConfig
from regard.config import kinds
from regard.errors import UserError
from regard.models import GPTConfig

EVERY: list[Normalizer] = [
    SoftmaxNormalizer(),
    SoftmaxNormalizer(0.5),
    HardLookup(),
    Sigmoid(),
    Sigmoid(-2.0),
    TopKSoftmax(2),
    TopKSoftmax(2, 0.3),
    Entmax(),
    Entmax(1.2),
    Entmax(2.0),
]
rows = st.lists(st.lists(st.floats(-4, 4, width=32), min_size=5, max_size=5), min_size=1, max_size=4)
seen = st.lists(st.booleans(), min_size=5, max_size=5)


def sparsemax(scores: list[float]) -> list[float]:
    """The projection onto the simplex, by sorting (Martins and Astudillo 2016, algorithm 1)."""
    ordered = sorted(scores, reverse=True)
    support = max(n for n in range(1, len(ordered) + 1) if 1 + n * ordered[n - 1] > sum(ordered[:n]))
    threshold = (sum(ordered[:support]) - 1) / support
    return [max(0.0, score - threshold) for score in scores]


def entmax(scores: list[float], alpha: float) -> list[float]:
    """By trying thresholds: the sum of the weights falls with it."""
    low, high = (alpha - 1) * max(scores) - 1, (alpha - 1) * max(scores)

    def weights(threshold: float) -> list[float]:
        return [max(0.0, (alpha - 1) * score - threshold) ** (1 / (alpha - 1)) for score in scores]

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return weights(low)


ORACLES = {
    SoftmaxNormalizer(0.5): lambda s: [math.exp(2 * x) / sum(math.exp(2 * y) for y in s) for x in s],
    Sigmoid(-2.0): lambda s: [1 / (1 + math.exp(2 - x)) for x in s],
    HardLookup(): lambda s: [(x == max(s)) / s.count(max(s)) for x in s],
    Entmax(2.0): sparsemax,
    Entmax(1.5): lambda s: entmax(s, 1.5),
    Entmax(1.2): lambda s: entmax(s, 1.2),
}


@pytest.mark.parametrize("normalizer", ORACLES, ids=str)
@given(scores=rows, visible=seen)
def test_it_is_its_formula(normalizer: Normalizer, scores: list[list[float]], visible: list[bool]) -> None:
    given_scores = torch.tensor(scores, dtype=torch.float64)
    mask = torch.tensor(visible).expand(given_scores.shape)
    weights = normalizer.normalize(given_scores, mask)
    assert not weights[~mask].any()
    for row, got in zip(scores, weights.tolist(), strict=True):
        near = [score for score, there in zip(row, visible, strict=True) if there]
        want = iter(ORACLES[normalizer](near) if near else [])
        assert got == pytest.approx([next(want) if there else 0.0 for there in visible], abs=1e-9)


@pytest.mark.parametrize("normalizer", EVERY, ids=str)
@given(scores=rows, visible=seen, dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_rows_sum_to_one_where_it_says_so(normalizer: Normalizer, scores, visible, dtype: torch.dtype) -> None:
    given_scores = (4 * torch.tensor(scores)).to(dtype).requires_grad_()
    mask = torch.tensor(visible).expand(given_scores.shape)
    weights = normalizer.normalize(given_scores, mask)
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert not weights[~mask].any()
    assert (weights >= 0).all()
    if normalizer.sums_to_one:
        close = 1e-5 if dtype != torch.bfloat16 else 0.05
        torch.testing.assert_close(weights.sum(-1), mask.any(-1).to(dtype), atol=close, rtol=0)
    if weights.requires_grad:
        (gradient,) = torch.autograd.grad(weights.square().sum(), given_scores)
        assert gradient.isfinite().all()
        assert not gradient[~mask].any()


@pytest.mark.parametrize("normalizer", [n for n in EVERY if not isinstance(n, HardLookup)], ids=str)
def test_its_gradient_is_the_finite_difference(normalizer: Normalizer) -> None:
    torch.manual_seed(1)
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    visible = torch.rand(4, 6) < 0.7
    visible[0] = False
    assert torch.autograd.gradcheck(lambda s: normalizer.normalize(s, visible), scores)


def test_entmax_lies_between_the_softmax_and_sparsemax() -> None:
    scores = torch.tensor([[2.0, 1.6, 0.3, -1.0, -3.0]], dtype=torch.float64)
    every = torch.ones_like(scores, dtype=torch.bool)
    near_softmax = Entmax(1.0001).normalize(scores, every)
    torch.testing.assert_close(near_softmax, scores.softmax(-1), atol=1e-3, rtol=0)
    zeros = [(Entmax(alpha).normalize(scores, every) == 0).sum().item() for alpha in (1.1, 1.5, 2.0)]
    assert zeros == sorted(zeros)
    assert zeros[-1] == 3


@pytest.mark.parametrize("normalizer", EVERY, ids=str)
def test_auto_runs_it_and_blocks_equal_the_reference(normalizer: Normalizer) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 9, 4, dtype=torch.float64).unbind())

    def outcome(backend: str) -> list[Tensor]:
        values = attend(q, k, v, Causal(), mechanism=Softmax(normalizer=normalizer, backend=backend)).values
        return [values, *torch.autograd.grad(values.square().sum(), (q, k, v), materialize_grads=True)]

    for got, want in zip(outcome("auto"), outcome("reference"), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "topk", "entmax", "sparsemax"])
def test_a_model_trains_and_decodes_with_it(kind: str) -> None:
    config = kinds(NormalizerConfig)[kind]()
    assert isinstance(config, NormalizerConfig)
    learns_and_decodes(SoftmaxConfig(normalizer=config))


def test_every_kind_is_tested() -> None:
    assert set(kinds(NormalizerConfig)) == {"softmax", "sigmoid", "topk", "entmax", "sparsemax"}


def test_a_config_builds_what_it_says() -> None:
    assert SigmoidConfig().build(256) == Sigmoid(-math.log(256))
    assert SoftmaxNormalizerConfig(0.0).build(1) == HardLookup()
    assert SoftmaxNormalizerConfig(0.5).build(1) == SoftmaxNormalizer(0.5)


@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        (EntmaxConfig(2.5), "alpha must be above 1 and at most 2, not 2.5"),
        (SoftmaxNormalizerConfig(-1.0), "temperature must be a finite number, zero or more, not -1.0"),
    ],
)
def test_settings_are_checked(normalizer: NormalizerConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        GPTConfig(attention=SoftmaxConfig(normalizer=normalizer)).build()


def test_a_temperature_is_given_once() -> None:
    with pytest.raises(ValueError, match="give the temperature to the normalizer itself"):
        Softmax(normalizer=Sigmoid(), temperature=0.5)
