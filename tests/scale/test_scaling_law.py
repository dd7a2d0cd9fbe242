"""The law: constants that are known are found, derivatives are right, intervals cover, optimal sizes are optimal."""

from statistics import fmean

import numpy as np
import pytest

from regard.errors import UserError
from regard.scale.law import Law, Point, fit, log_losses

TRUE = Law(1.2, 30.0, 250.0, 0.45, 0.5)
SIZES, LENGTHS, SEEDS = (16_000, 32_000, 64_000, 128_000, 256_000), (500_000, 1_000_000, 2_000_000, 4_000_000), 2
TARGET = 1_024_000, 4_000_000


def points(noise: float, seed: int) -> list[Point]:
    draw = np.random.default_rng(seed)
    every = [(n, d) for n in SIZES for d in LENGTHS for _ in range(SEEDS)]
    return [Point(n, d, TRUE.loss(n, d) * float(np.exp(draw.normal(0, noise)))) for n, d in every]


def test_exact_points_give_the_constants():
    found = fit(points(0.0, 1), samples=5)
    for name in Law._fields:
        assert getattr(found.law, name) == pytest.approx(getattr(TRUE, name), rel=0.02)
    assert max(map(abs, found.residuals)) < 1e-4
    assert found.predict(*TARGET).value == pytest.approx(TRUE.loss(*TARGET), rel=1e-4)


def test_noisy_points_give_about_the_constants_and_the_prediction():
    """With noise of 0.3 % per training: the spread over seeds is known, and the bounds are several of it."""
    found = [fit(points(0.003, seed), samples=2).law for seed in range(6)]
    for one in found:
        assert one.loss(*TARGET) == pytest.approx(TRUE.loss(*TARGET), rel=0.02)
        assert 0.8 < one.E / TRUE.E < 1.2
    for name, off in (("a", 0.1), ("b", 0.15)):
        assert fmean(getattr(one, name) for one in found) == pytest.approx(getattr(TRUE, name), abs=off)


def test_an_outlier_moves_a_robust_fit_little():
    bad = points(0.001, 3)
    bad[7] = bad[7]._replace(loss=bad[7].loss * 1.5)
    assert fit(bad, samples=2).law.loss(*TARGET) == pytest.approx(TRUE.loss(*TARGET), rel=0.01)


def test_intervals_cover_the_constants_and_one_more_training():
    """Of 95 % intervals over 8 repetitions, a fraction far above what a wrong width would give."""
    covered: dict[str, list[bool]] = {}
    for seed in range(8):
        found = fit(points(0.003, seed), samples=40, seed=seed)
        for name in Law._fields:
            inside = found.interval(name)
            covered.setdefault(name, []).append(inside.low <= getattr(TRUE, name) <= inside.high)
        one, noise = found.predict(*TARGET), np.random.default_rng([seed, 9]).normal(0, 0.003)
        covered.setdefault("prediction", []).append(one.low <= TRUE.loss(*TARGET) * np.exp(noise) <= one.high)
        assert one.low < one.value < one.high
        assert one.high / one.low < 1.08  # and they are not so wide that they cover everything
    assert min(map(fmean, covered.values())) >= 0.5
    assert fmean(map(fmean, covered.values())) >= 0.8


def test_derivatives_equal_finite_differences():
    draw = np.random.default_rng(4)
    theta, x, step = draw.normal(0, 0.5, (3, 5)), draw.normal(0, 1, (7, 2)), 1e-6
    _, slope = log_losses(theta, x)
    for i in range(5):
        change = np.zeros(5)
        change[i] = step
        numeric = (log_losses(theta + change, x)[0] - log_losses(theta - change, x)[0]) / (2 * step)
        np.testing.assert_allclose(slope[..., i], numeric, rtol=1e-5, atol=1e-8)


def test_optimal_sizes_have_the_lowest_loss_of_their_budget():
    flops = 1e15
    parameters, tokens = TRUE.optimal(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    for factor in (0.8, 1.25):
        assert TRUE.loss(parameters * factor, tokens / factor) > TRUE.loss(parameters, tokens)


@pytest.mark.parametrize("few", [points(0, 1)[:5], [p for p in points(0, 1) if p.parameters < 64_000]])
def test_too_few_points_are_refused(few):
    with pytest.raises(UserError, match="--sizes and --tokens"):
        fit(few)
