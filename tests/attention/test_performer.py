"""Performer: an unbiased estimate of the softmax's likeness, whose error falls with its features; redraws; steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.attention import Alibi, Causal, Full, LayerSpec, Padded, Range, Softmax
from regard.attention.mechanisms.performer import Performer, PerformerConfig, draw_directions, positive
from regard.errors import UserError

DRAWS = 400
BUDGETS = [4, 16, 64, 256, 1024]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pairs(count: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    q, k = torch.randn(2, count, width, generator=generator(seed), dtype=torch.float64)
    return q, k


def likenesses(q: Tensor, k: Tensor, features: int, draws: int, orthogonal: bool) -> Tensor:
    """φ(q)·φ(k) of each pair in each draw: [draws, pairs]."""
    found = []
    for seed in range(draws):
        directions = draw_directions(features, q.shape[1], generator(seed), orthogonal=orthogonal)
        found.append((positive(q, directions) * positive(k, directions)).sum(-1))
    return torch.stack(found)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("features", [3, 8, 20])
def test_the_likeness_is_unbiased(features: int, orthogonal: bool) -> None:
    """The mean over draws lies within its own standard error of exp(q·k/√D), jointly over pairs.

    z² summed over pairs has mean 1 each; pairs share draws, so Bonferroni's bound is used: no |z| above the quantile
    that a normal exceeds once in 10,000 such tests of 6 pairs (z = 5.6).
    """
    q, k = pairs(6, 8)
    found = likenesses(q, k, features, DRAWS, orthogonal)
    error = found.mean(0) - ((q * k).sum(-1) / math.sqrt(8)).exp()
    z = error / (found.std(0) / math.sqrt(DRAWS))
    assert z.abs().max() < 5.6, f"z = {z.tolist()}"


def test_a_biased_likeness_would_be_noticed() -> None:
    """The same z with half the exponent's shift left out."""
    q, k = pairs(6, 8)
    found = likenesses(q, k, 20, DRAWS, True) * (q.square().sum(-1) / math.sqrt(8) / 2).exp()
    error = found.mean(0) - ((q * k).sum(-1) / math.sqrt(8)).exp()
    assert (error / (found.std(0) / math.sqrt(DRAWS))).abs().max() > 5.6


def test_orthogonal_directions_make_a_less_variable_estimate() -> None:
    """Theorem 2 of the paper, with the variances' own standard errors."""
    q, k = pairs(30, 8)
    spread = [likenesses(q, k, 8, DRAWS, orthogonal).log().var(0).mean().item() for orthogonal in (True, False)]
    assert spread[0] < spread[1]


def test_directions_are_normal_and_orthogonal() -> None:
    drawn = torch.stack([draw_directions(12, 8, generator(seed)) for seed in range(DRAWS)])
    apart = drawn[:, :8] @ drawn[:, :8].mT
    lengths = apart.diagonal(dim1=1, dim2=2)
    assert (apart - torch.diag_embed(lengths)).abs().max() < 1e-9
    flat = drawn.flatten(0, 1)
    error = math.sqrt(1 / len(flat))
    assert flat.mean(0).abs().max() < 5.6 * error
    assert (flat.square().mean(0) - 1).abs().max() < 5.6 * error * math.sqrt(2)
    assert (lengths.mean() - 8).abs() < 5.6 * math.sqrt(16 / lengths.numel())  # χ² with 8 degrees


@pytest.mark.parametrize("mask", [Causal(), Full()])
def test_the_error_falls_over_five_budgets(mask: Causal | Full) -> None:
    """Mean square error over draws against exact attention: each budget's below the last one's by more than the noise.

    The noise is the standard error of the difference of the two means, from the draws themselves. A likeness of long q
    and k varies as exp(|q' + k'|²), so that theirs would take thousands of features: these are of moderate length.
    """
    q, k, v = (torch.randn(1, 2, 40, 8, generator=generator(i), dtype=torch.float64) for i in range(3))
    q, k = 0.6 * q, 0.6 * k
    exact = Softmax()
    want = exact(q, k, v, exact.plan(mask, Range(40), like=q)).values
    errors = []
    for features in BUDGETS:
        found = []
        for seed in range(60):
            torch.manual_seed(seed)
            mechanism = Performer(8, features).double()
            got = mechanism(q, k, v, mechanism.plan(mask, Range(40), like=q)).values
            found.append((got - want).square().mean())
        errors.append(torch.stack(found))
    for few, many in pairwise(errors):
        noise = math.sqrt((few.var() + many.var()).item() / len(few))
        assert few.mean() - many.mean() > 3 * noise, [e.mean().item() for e in errors]


def test_every_layer_draws_its_own_and_a_seed_repeats_them() -> None:
    torch.manual_seed(3)
    one, two = Performer(4, 8), Performer(4, 8)
    torch.manual_seed(3)
    again = Performer(4, 8)
    assert torch.equal(one.directions, again.directions)
    assert not torch.equal(one.directions, two.directions)


def test_redrawing_is_a_function_of_seed_and_step() -> None:
    """A run stopped anywhere and taken up from its state dict sees the directions that it would have seen."""
    whole = Performer(4, 8, redraw=3)
    seen = []
    for step in range(10):
        whole.advance(step)
        seen.append(whole.directions.clone())
    assert [bool((a != b).any()) for a, b in pairwise(seen)] == [False, False, True] * 3
    for stop in range(10):
        first, second = Performer(4, 8, redraw=3), Performer(4, 8, redraw=3)
        first.seed.copy_(whole.seed)
        first.draw(0)
        for step in range(stop):
            first.advance(step)
        second.load_state_dict(first.state_dict())
        for step in range(stop, 10):
            second.advance(step)
            assert torch.equal(second.directions, seen[step]), (stop, step)


def test_drawing_leaves_other_random_numbers_alone() -> None:
    mechanism = Performer(4, 8, redraw=1)
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    mechanism.advance(5)
    assert torch.equal(torch.rand(3), want)
    place = mechanism.directions.data_ptr()
    mechanism.advance(6)
    assert mechanism.directions.data_ptr() == place  # a graph captured before goes on with the new ones


def test_large_queries_and_keys_stay_finite_in_float32() -> None:
    q, k, v = (torch.randn(2, 2, 70, 64, generator=generator(i)) for i in range(3))
    inputs = [x.requires_grad_() for x in (30 * q, 30 * k, v)]
    mechanism = Performer(64, 128)
    plan = mechanism.plan(Causal(), Padded(torch.tensor([70, 0]), 70), like=q)
    values = mechanism(*inputs, plan).values
    assert values.isfinite().all()
    assert values.abs().max() <= v.abs().max() * 1.0001
    for gradient in torch.autograd.grad(values.square().sum(), inputs):
        assert gradient.isfinite().all()


def test_it_can_be_built_from_shapes_alone() -> None:
    with torch.device("meta"):
        assert Performer(4, 8).directions.shape == (8, 4)


def test_the_config_says_what_is_impossible() -> None:
    sizes = LayerSpec(2, 2, 4, 8)
    built = PerformerConfig().mechanism(sizes)
    assert isinstance(built, Performer)
    assert built.directions.shape == (16, 4)
    with pytest.raises(ValueError, match="features must be at least 1"):
        PerformerConfig(features=0).check()
    with pytest.raises(ValueError, match="redraw must be zero or more"):
        PerformerConfig(redraw=-1).check()
    with pytest.raises(UserError, match="performer attention has no scores"):
        PerformerConfig().mechanism(sizes._replace(bias=Alibi(2)))
