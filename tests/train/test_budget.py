"""Budgets in tokens and epochs become steps, once; one in seconds has a first plan. All of them are written down."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_kit import experiment, run_whole, same, start, weights

from regard.config import load
from regard.errors import UserError
from regard.parallel.world import World
from regard.train import Experiment, train
from regard.train.budget import StepTimes, budget_in_steps, steps_within


def test_tokens_become_steps(text, tmp_path):
    run = run_whole(tmp_path, experiment(text, tokens=200, accumulate=2))  # 4 rows of 8 tokens, twice
    settled = load(Experiment, run.config).train
    assert (settled.steps, settled.tokens, settled.budget) == (3, None, "200 tokens")
    assert run.metrics()[-1]["step"] == 3


@pytest.mark.parametrize(("epochs", "accumulate", "steps"), [(0.3, 1, 5), (0.6, 2, 5)])
def test_epochs_become_steps(text, tmp_path, epochs, accumulate, steps):
    wanted = experiment(text, epochs=epochs, accumulate=accumulate)  # 4 rows of 8 of the 496 tokens to train on
    settled = load(Experiment, run_whole(tmp_path, wanted).config).train
    assert (settled.steps, settled.epochs, settled.budget) == (steps, None, f"{epochs:g} epochs")


def test_epochs_of_data_without_an_end_are_refused(text, monkeypatch):
    wanted = experiment(text, epochs=1.0)
    data = wanted.data.build(wanted.model.context)
    monkeypatch.setattr(data, "epoch", lambda size, world: math.inf)
    with pytest.raises(UserError, match=r"--train\.epochs: the length of .* is unknown; give --train\.steps"):
        budget_in_steps(wanted, data, World(), 0.0)


def test_seconds_become_plans_that_make_the_same_run_without_a_clock(text, tmp_path):
    wanted = experiment(text, seconds=1.0, evaluate_every=None, save_every=None)
    run = start(tmp_path, wanted, "timed")
    result = train(wanted, run)
    settled = load(Experiment, run.config)
    steps = settled.train.steps
    assert steps == result.step
    assert (settled.train.seconds, settled.train.budget) == (None, "1 seconds")
    assert settled.train.plans[0][0] == 0
    assert settled.train.plans[-1][1] == steps
    # Neither the calibration nor the clock left a trace.
    again = run_whole(tmp_path, settled)
    assert same(weights(run), weights(again))
    assert again.config == run.config
    assert [m.get("lr") for m in again.metrics()] == [m.get("lr") for m in run.metrics()]


def test_a_resumed_run_keeps_its_frozen_steps(text, tmp_path):
    wanted = experiment(text, seconds=0.5)
    run = start(tmp_path, wanted)
    first = train(wanted, run)
    again = train(load(Experiment, run.config), run, resume=True)
    assert (again.step, again.steps) == (first.step, first.steps)


@given(
    st.floats(1, 1000),
    st.builds(StepTimes, st.floats(1e-3, 1), st.floats(0, 5), st.just(0.0)),
    st.one_of(st.none(), st.integers(1, 500)),
)
def test_as_many_steps_as_fit_and_no_more(seconds, pace, every):
    def cost(steps: int) -> float:
        evaluations = 1 + (steps - 1) // every if every else 1
        return steps * pace.step + evaluations * pace.evaluation

    steps = steps_within(seconds, pace, every)
    assert steps >= 1
    if steps > 1:  # at most one evaluation is late, and then half of the time was for steps
        late = steps <= (every or steps) and steps * pace.step <= seconds / 2 * (1 + 1e-9)
        assert cost(steps) <= (seconds + late * pace.evaluation) * (1 + 1e-9)
    # Not much is given away: less than one round of steps and its evaluation, and the one at the end.
    room = pace.step * 2 + pace.evaluation * 2
    assert cost(steps) >= seconds - room - pace.step * (every or 1) or steps == 1


@pytest.mark.parametrize(("every", "steps"), [(None, 450), (300, 300)])
def test_a_long_evaluation_does_not_leave_an_untrained_model(every, steps):
    assert steps_within(90, StepTimes(step=0.1, evaluation=300, start=0), every) == steps


@pytest.mark.parametrize(
    ("prepared", "evaluation", "least", "advice"),
    [
        (0, 300.0, 15, ["--train.seconds 6", "--data.validation"]),
        (80, 0.0, 6, ["--train.seconds 17"]),  # evaluations are not what takes long
    ],
)
def test_a_run_that_will_be_late_trains_and_says_why(text, monkeypatch, capsys, prepared, evaluation, least, advice):
    wanted = experiment(text, seconds=60, evaluate_every=None)
    monkeypatch.setattr("regard.train.budget.measure", lambda engine, longest: StepTimes(1.0, evaluation, 0.0))
    began = time.perf_counter() - prepared
    settled = budget_in_steps(wanted, wanted.data.build(wanted.model.context), World(), began)
    assert (settled.train.steps or 0) >= least
    said = capsys.readouterr().err
    assert f"one evaluation about {evaluation:.0f} s, so the run takes longer than 60 s" in said
    assert all(words in said for words in advice)
    assert ("--data.validation" in said) == ("--data.validation" in advice)
