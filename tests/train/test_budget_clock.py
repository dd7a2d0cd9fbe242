"""A budget in seconds is kept by changing the number of steps, and what was decided makes the same run again.

How exactly it is kept is measured by `python -m bench.budget`. Here time is a number that only the test moves, or does
not matter.
"""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kill import CONFIG
from train_kit import experiment, newest, run_whole, same, start, weights

from regard.commands.resume import replanned
from regard.config import load
from regard.parallel.world import World
from regard.runs import Run
from regard.train import Experiment, Observer, TrainConfig, TrapezoidScheduleConfig, budget_clock, train
from regard.train.budget import kept_until
from regard.train.budget_clock import BudgetClock
from regard.train.engine import TrainingProgress
from regard.train.evaluation_size import EvaluationTime
from warm_process import cache_inside, regard


class FakeTime:
    """A clock that only the test moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def simulated(budget: float, speeds: list[float], evaluation: float, first_plan: int, spent: float = 0.0) -> float:
    """The end of a run whose steps take the next of the speeds after each part of the budget, in seconds."""
    fake = FakeTime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget_clock, "time", fake)
        patch.setattr(budget_clock, "time_evaluation", lambda engine: EvaluationTime(10, evaluation / 10))
        engine: Any = SimpleNamespace(
            world=World(),
            experiment=Experiment(train=TrainConfig(steps=first_plan, plans=((0, first_plan),), seconds=budget)),
            progress=TrainingProgress(spent=spent),
            data=SimpleNamespace(validation_count=None),
            model=SimpleNamespace(parameters=lambda: []),
        )
        clock = BudgetClock.of(engine, fake.now, 0.0)
        assert clock is not None
        progress = engine.progress
        while progress.step < engine.experiment.train.steps:
            share = (fake.now + spent) / budget
            step = speeds[min(len(speeds) - 1, int(share * len(speeds)))]
            fake.now += step
            progress.step += 1
            progress.seconds += step
            engine.experiment = clock.replanned() or engine.experiment
    return fake.now + evaluation


seconds_of_a_step = st.floats(0.01, 0.2)


@given(st.floats(20, 200), seconds_of_a_step, st.floats(0, 1), st.integers(1, 5000))
def test_a_run_of_one_speed_ends_in_time_whatever_its_first_plan(budget, step, evaluation, first_plan):
    ended = simulated(budget, [step], evaluation, max(2, first_plan))
    assert ended == pytest.approx(budget, abs=2 * step + 0.01 * budget)


@given(st.floats(20, 200), st.lists(seconds_of_a_step, min_size=1, max_size=6))
def test_a_machine_whose_speed_changes_does_not_matter(budget, speeds):
    ended = simulated(budget, speeds, 0.0, max(2, int(budget / speeds[0])))
    assert ended == pytest.approx(budget, abs=2 * max(speeds) + 0.02 * budget)


@given(st.floats(20, 200), st.floats(0.1, 0.9), seconds_of_a_step)
def test_a_resumed_run_has_what_is_left(budget, share, step):
    spent = share * budget
    ended = simulated(budget, [step], 0.0, max(2, int(budget / step)), spent)
    assert ended == pytest.approx(budget - spent, abs=2 * step + 0.02 * budget)


class Killed(Exception):
    pass


class SlowAndKill(Observer):
    """Makes steps slower than the calibration has found them, so that the plan changes, and ends the run after that."""

    def __init__(self):
        self.plans: list[tuple[int, int]] = []

    def changed(self, experiment):
        self.plans = list(experiment.train.plans)

    def stepped(self, step):
        time.sleep(0.01)
        if len(self.plans) > 1 and step.step > 20:
            raise Killed


def killed(text, folder):
    """A run that is killed after a change of plan, and the plans it had."""
    wanted = experiment(
        text, seconds=60.0, schedule=TrapezoidScheduleConfig(), evaluate_every=None, save_every=6, keep=10
    )
    run, observer = start(folder, wanted), SlowAndKill()
    with pytest.raises(Killed):
        train(wanted, run, [observer])
    assert run.config["train"]["plans"] == [list(plan) for plan in observer.plans]
    return run, observer.plans


def resumed(run, seconds: float):
    """The result of the rest of a run, with a budget that is over or nearly over."""
    late = run.load(Experiment)
    return train(replace(late, train=replace(late.train, seconds=seconds)), run, resume=True)


@pytest.mark.parametrize("checkpoint", [6, 18])
def test_a_resumed_run_forgets_the_plans_after_its_checkpoint(text, tmp_path, checkpoint):
    run, plans = killed(text, tmp_path)
    for step in run.steps():
        if step > checkpoint:
            shutil.rmtree(run.path / "checkpoints" / f"step-{step:06}")
    result = resumed(run, newest(run).number("spent") + 1.5)
    assert result.step == result.steps > checkpoint
    settled = run.load(Experiment)
    kept = [plan for plan in plans if plan[0] <= checkpoint]
    assert list(settled.train.plans[: len(kept)]) == kept
    assert all(plan[0] > checkpoint for plan in settled.train.plans[len(kept) :])
    assert settled.train.seconds is None
    again = run_whole(tmp_path, settled)
    assert same(weights(again), weights(run))
    assert same(newest(again).optimizer(), newest(run).optimizer())


def test_a_run_whose_budget_is_over_ends_with_one_more_step(text, tmp_path):
    run, _ = killed(text, tmp_path)
    step = newest(run).step
    assert resumed(run, 1e-3).step == step + 1


def test_plans_of_another_number_of_steps_are_not_followed(text):
    wanted = experiment(text, steps=20, plans=((0, 10), (5, 20))).train
    assert wanted.factor(5) == wanted.schedule.factor(5, 10)
    assert replace(wanted, steps=30).factor(5) == wanted.schedule.factor(5, 30)


def test_a_resumed_run_with_another_number_of_steps_has_no_plans(text):
    wanted = experiment(text, steps=20, plans=((0, 10), (5, 20)), budget="3 seconds")
    longer = replanned(wanted, 40, 20).train
    assert (longer.steps, longer.plans, longer.seconds) == (40, (), None)
    unfinished = replace(wanted, train=replace(wanted.train, seconds=3.0))
    assert replanned(unfinished, 20, 8).train.seconds is None


def test_plans_are_kept_up_to_a_checkpoint(text):
    wanted = experiment(text, steps=20, plans=((0, 10), (5, 12), (8, 20)), seconds=3.0)
    for step, plans in ((4, 1), (5, 2), (7, 2), (8, 3)):
        found = kept_until(wanted, step).train
        assert found.plans == wanted.train.plans[:plans]
        assert found.steps == wanted.train.plans[plans - 1][1]


def test_a_run_killed_with_sigkill_after_a_change_is_the_run_of_its_last_config(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and saw no dog. " * 400)
    seconds = CONFIG.replace("steps = 60", "seconds = 8").replace("keep = 2", 'keep = 2\ndevice = "cpu"')
    (tmp_path / "kill.toml").write_text(seconds)
    command = [sys.executable, "-m", "regard.cli", "train", "kill.toml", "--name", "run"]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=tmp_path, env=cache_inside(tmp_path), stdout=nowhere, stderr=nowhere)
    folder = tmp_path / "runs" / "run"
    while process.poll() is None:
        if (folder / "config.toml").is_file():
            run = Run.open(folder)
            if run.steps() and len(run.config["train"].get("plans", [])) > 1:
                break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = regard(tmp_path, "resume", "runs/run")
    assert done.returncode == 0, done.stderr
    run = Run.open(folder)
    settled = load(Experiment, run.config).train
    assert settled.seconds is None
    assert settled.steps == newest(run).step
    done = regard(tmp_path, "train", "runs/run/config.toml", "--name", "again")
    assert done.returncode == 0, done.stderr
    again = Run.open(tmp_path / "runs" / "again")
    assert same(weights(again), weights(run))
    assert same(newest(again).optimizer(), newest(run).optimizer())
