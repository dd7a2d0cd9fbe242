"""Schedules: their shapes, and the laws all of them keep."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import dump, load
from regard.errors import UserError
from regard.train.schedule import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    LinearScheduleConfig,
    NoamScheduleConfig,
    ScheduleConfig,
    TrapezoidScheduleConfig,
    virtual_step,
)

lengths = st.one_of(st.floats(0, 0.99), st.integers(1, 300).map(float))
levels = st.floats(0, 1)
schedules = st.one_of(
    st.builds(ConstantScheduleConfig, lengths),
    st.builds(LinearScheduleConfig, lengths, levels),
    st.builds(CosineScheduleConfig, lengths, levels),
    st.builds(TrapezoidScheduleConfig, lengths, lengths, levels),
    st.builds(NoamScheduleConfig, lengths),
)


@given(schedules, st.integers(1, 500), st.data())
def test_every_factor_lies_between_0_and_1(schedule, steps, data):
    step = data.draw(st.integers(0, steps - 1))
    assert 0 < schedule.factor(step, steps) <= 1


@given(schedules, st.integers(1, 300))
def test_rises_once_then_never_rises_again(schedule, steps):
    factors = [schedule.factor(step, steps) for step in range(steps)]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


@st.composite
def plans(draw):
    """A first plan and up to five others, each of which begins after the one before and before its end."""
    found = [(0, draw(st.integers(1, 400)))]
    for _ in range(draw(st.integers(0, 5))):
        (since, steps) = found[-1]
        if steps - since < 2:
            break
        changed = draw(st.integers(since + 1, steps - 1))
        found.append((changed, draw(st.integers(changed + 1, changed + 400))))
    return tuple(found)


@given(plans())
def test_a_plan_that_changes_is_the_whole_first_one_without_a_jump(planned):
    steps, first = planned[-1][1], planned[0][1]
    places = [virtual_step(step, planned) for step in range(steps + 1)]
    assert places[0] == 0
    assert places[-1] == first
    assert all(before < after for before, after in pairwise(places))
    for number, (changed, newer) in enumerate(planned[1:], 1):
        # What is left of the schedule is shared by the steps that are left.
        assert virtual_step(changed, planned) == virtual_step(changed, planned[:number])
        end = min(steps, planned[number + 1][0] if number + 1 < len(planned) else steps)
        pace = (first - places[changed]) / (newer - changed)
        rises = [places[step + 1] - places[step] for step in range(changed, end)]
        assert rises == pytest.approx([pace] * len(rises), rel=1e-6, abs=1e-9)


@given(st.integers(1, 400), st.data())
def test_a_plan_that_does_not_change_is_the_schedule_itself(steps, data):
    step = data.draw(st.integers(0, steps))
    place = virtual_step(step, ((0, steps),))
    assert isinstance(place, int)
    assert place == step


@given(schedules, plans())
def test_factors_between_two_steps_lie_between_0_and_1(schedule, planned):
    for step in range(planned[-1][1]):
        assert 0 < schedule.factor(virtual_step(step, planned), planned[0][1]) <= 1


@given(schedules, st.integers(1, 10**6))
def test_a_config_read_back_is_the_same_schedule(schedule, steps):
    again = load(ScheduleConfig, dump(schedule))
    assert again == schedule
    assert again.factor(steps // 2, steps) == schedule.factor(steps // 2, steps)


@given(st.integers(1, 100), st.integers(101, 1000))
def test_warm_up_is_a_line_that_ends_at_one(warmup, steps):
    for cls in (ConstantScheduleConfig, LinearScheduleConfig, CosineScheduleConfig, NoamScheduleConfig):
        schedule = cls(warmup=float(warmup))
        for step in range(warmup):
            assert schedule.factor(step, steps) == pytest.approx((step + 1) / warmup)


def test_a_share_and_a_number_of_steps_are_the_same_warm_up():
    for cls in (
        ConstantScheduleConfig,
        LinearScheduleConfig,
        CosineScheduleConfig,
        NoamScheduleConfig,
        TrapezoidScheduleConfig,
    ):
        share, number = cls(warmup=0.25), cls(warmup=50.0)
        assert [share.factor(s, 200) for s in range(200)] == [number.factor(s, 200) for s in range(200)]


def test_linear_and_cosine_pass_half_way_and_arrive():
    linear, cosine = LinearScheduleConfig(warmup=0, final=0.2), CosineScheduleConfig(warmup=0, final=0.2)
    for schedule in (linear, cosine):
        assert schedule.factor(0, 100) == 1
        assert schedule.factor(50, 100) == pytest.approx(0.6)
        assert schedule.factor(100, 100) == pytest.approx(0.2)
    assert linear.factor(25, 100) == pytest.approx(0.8)
    assert cosine.factor(25, 100) == pytest.approx(0.2 + 0.8 * (1 + 0.5**0.5) / 2)


def test_trapezoid_is_flat_between_its_slopes():
    schedule = TrapezoidScheduleConfig(warmup=10, decay=20, final=0.0)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[9:81] == [1.0] * 72
    assert factors[80:] == pytest.approx([(100 - step) / 20 for step in range(80, 100)])


def test_noam_is_equation_3_over_its_peak():
    width, warmup = 512, 4000

    def paper(s: int) -> float:
        return width**-0.5 * min(s**-0.5, s * warmup**-1.5)

    schedule, peak = NoamScheduleConfig(warmup=4000), (width * warmup) ** -0.5
    for step in (0, 1, 1999, 3999, 4000, 9999, 99_999):
        assert peak * schedule.factor(step, 100_000) == pytest.approx(paper(step + 1))
    assert schedule.factor(3999, 100_000) == 1


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"kind": "cosine", "warmup": -0.1}, "warmup"),
        ({"kind": "noam", "warmup": 2.5}, "warmup"),
        ({"kind": "linear", "final": 1.5}, "final"),
        ({"kind": "trapezoid", "decay": -1.0}, "decay"),
    ],
)
def test_impossible_settings_are_refused_by_name(table, named):
    with pytest.raises(UserError, match=named):
        load(ScheduleConfig, table)
