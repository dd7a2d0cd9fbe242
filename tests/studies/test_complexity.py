"""The study of complexity: chains of operations, hops, fits."""

import pytest
import torch

from regard.studies.complexity import (
    COUNTED,
    KINDS,
    PATHS,
    WIDTH,
    WINDOW,
    Depth,
    LayerCost,
    built,
    dependent_steps,
    exponent,
    hops,
    law,
    waits,
    words,
    work,
)


def test_the_longest_chain_is_counted_and_views_are_free() -> None:
    x = torch.ones(8)
    with Depth() as mode:
        y = x.exp().view(2, 4).T.exp()  # a chain of 2
        z = x.sin()  # beside it
        assert mode.deepest == 2
        (y.sum() + z.sum()).exp()
    assert mode.deepest == 5
    with Depth() as mode:
        x.clone().exp_().exp_()
    assert mode.deepest == 3


def test_recurrent_steps_grow_with_the_length_and_those_of_attention_do_not() -> None:
    recurrent, attention = (built(KINDS[name]) for name in ("recurrent", "attention"))
    grow = [dependent_steps(recurrent, n) for n in (8, 16, 24)]
    assert grow[2] - grow[1] == grow[1] - grow[0] >= 8
    assert dependent_steps(attention, 8) == dependent_steps(attention, 64)


@pytest.mark.parametrize("length", [16, 40])
@pytest.mark.parametrize("seed", [1, 2])
def test_hops_are_those_of_the_formulas(length: int, seed: int) -> None:
    expected = {
        "recurrent": length - 1,
        "convolution (kernel 3)": -(-(length - 1) // 2),
        "attention": 1,
        f"window attention ({WINDOW})": 1,
        "linear attention": 1,
        "state space (S4D)": 1,
    }
    assert {name: hops(built(KINDS[name]), length, seed) for name in expected} == expected
    assert hops(built(KINDS["dilated convolutions"]), length, seed) <= 8


def test_fits_find_the_law() -> None:
    times = [[1e-6 * n**1.5 * noise for noise in (0.9, 1, 1.1)] for n in (8, 16, 32, 64)]
    estimate, low, high = exponent((8, 16, 32, 64), times, seed=1)
    assert low < estimate < high
    assert estimate == pytest.approx(1.5)
    assert law([6 * n * WIDTH**2 + 2 * n**2 * WIDTH for n in COUNTED]) == pytest.approx((6, 2))


def test_the_page_says_what_was_measured() -> None:
    straight = [4.0 * n * WIDTH**2 for n in COUNTED]
    slow = LayerCost(straight, [3 * n for n in COUNTED], [n - 1 for n in PATHS], [], (1.1, 1.0, 1.2))
    found = {name: slow._replace(steps=[20] * 4, hops=[1] * 5) for name in KINDS} | {"recurrent": slow}
    assert work(found)[0] == ("recurrent", "n d²", "4.0 n d²", "n^1.10 (1.00 to 1.20)")
    assert waits(found)[0][1:3] == ("n", "3 n")
    assert waits(found)[3][2] == "20, constant"
    said = words(found)
    assert f"recurrent: {PATHS[-1] - 1}; convolution" in said[0]
    assert "for each further token: recurrent: 3; none" in said[1]
