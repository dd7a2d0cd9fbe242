"""Budgets: what is parsed, what is refused, and how close the contenders of a budget are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.compare.budget import LEAST, Budget, Length, StepCost, steps_of
from regard.compare.costs import in_turn
from regard.errors import UserError
from regard.train import TrainConfig

COSTS = st.builds(StepCost, st.floats(64, 1e5), st.floats(1e6, 1e13), st.floats(1e-3, 10))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["seconds=120"], Budget(None, (Length("seconds", 120),))),
        (["flops=1e14"], Budget(None, (Length("flops", 1e14),))),
        (["tokens=5M,params=1.5M"], Budget(1.5e6, (Length("tokens", 5e6),))),
        (["params=1M", "tokens=2k", "seconds=3"], Budget(1e6, (Length("tokens", 2e3), Length("seconds", 3)))),
        ([], Budget(None, ())),
    ],
)
def test_budgets_are_read(texts: list[str], expected: Budget) -> None:
    assert Budget.parse(texts) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("hours=2", "none of"),
        ("tokens=many", "number above zero"),
        ("seconds=-3", "number above zero"),
        ("params=inf", "number above zero"),
        ("tokens=1M,tokens=2M", "given twice"),
        ("params=1M,params=2M", "given twice"),
    ],
)
def test_impossible_budgets_are_refused(text: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        Budget.parse([text])


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (TrainConfig(steps=70), Length("steps", 70)),
        (TrainConfig(epochs=2.0), Length("epochs", 2)),
        (TrainConfig(steps=None, seconds=9.0), Length("seconds", 9)),
    ],
)
def test_without_a_length_it_is_that_of_the_recipe(train: TrainConfig, expected: Length) -> None:
    assert Budget.parse(["params=1M"]).or_of(train) == Budget(1e6, (expected,))


@given(
    st.lists(COSTS, min_size=2, max_size=6), st.sampled_from(["seconds", "flops", "tokens", "steps"]), st.floats(1, 9)
)
def test_contenders_of_a_budget_differ_by_under_two_percent(costs: list[StepCost], measure, more: float) -> None:
    each = [1.0 if measure == "steps" else getattr(cost, measure) for cost in costs]
    length = Length(measure, LEAST * max(each) * more)
    amounts = [
        steps_of(length, cost, 100.0, "one") * one / length.amount for cost, one in zip(costs, each, strict=True)
    ]
    assert all(abs(amount - 1) <= 0.02 for amount in amounts)


def test_too_short_a_length_is_refused_with_one_that_would_do() -> None:
    cost = StepCost(100, 1e6, 0.5)
    with pytest.raises(UserError, match=r"seconds=12\.5 or more"):
        steps_of(Length("seconds", 10), cost, 100.0, "lstm")
    assert steps_of(Length("seconds", 12.5), cost, 100.0, "lstm") == LEAST
    assert steps_of(Length("epochs", 2), cost, 100.0, "lstm") == 200


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_machine_favors_nobody(seed: int) -> None:
    """Spells of other work multiply all times by up to three; measured in turn, ratios stay within 5 %."""
    draw, true = random.Random(seed), [0.1, 0.02, 0.3]
    now, spell = 0.0, (0.0, 1.0)

    def function(cost: float):
        def run() -> None:
            nonlocal now, spell
            if now >= spell[0]:
                spell = now + draw.uniform(0.5, 4.0), draw.choice([1.0, 1.0, 3.0])
            now += cost * spell[1] * draw.uniform(0.99, 1.01)

        return run

    found = in_turn([function(cost) for cost in true], lambda: now)
    ratios = [a / b for a, b in zip(found, true, strict=True)]
    assert max(ratios) / min(ratios) < 1.05
