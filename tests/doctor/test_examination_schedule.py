"""When the doctor looks: every depth in every run, and a bounded share of long ones."""

from __future__ import annotations

import pytest

from regard.data import TextConfig
from regard.doctor.schedule import SHARE, STEPS, TOKENS, Examination, Schedule
from regard.models import GPTConfig
from regard.train import Experiment, TrainConfig


def schedule(steps: int, batch: int = 12, context: int = 64, first: int = 0) -> Schedule:
    train = TrainConfig(steps=steps)
    return Schedule(Experiment(GPTConfig(context=context), TextConfig(batch=batch), train=train), first)


@pytest.mark.parametrize("steps", [6, 30, 599, 600, 12_345])
@pytest.mark.parametrize("first", [0, 1000])
def test_every_run_is_examined_at_every_depth(steps: int, first: int) -> None:
    made = schedule(first + steps, first=first)
    assert set(made.examinations.values()) == set(Examination)
    assert max(made.examinations) == first + steps
    assert min(made.examinations) > first
    assert sum(map(made.replays, range(first, first + steps))) >= 2
    assert made.replays(first + 2)
    assert not made.replays(first + steps)


@pytest.mark.parametrize(("batch", "context"), [(1, 8), (12, 64), (64, 1024)])
def test_long_runs_spend_a_small_share(batch: int, context: int) -> None:
    steps = 100_000
    each = STEPS + TOKENS / (3 * batch * context)
    assert len(schedule(steps, batch, context).examinations) * each <= SHARE * steps * (1 + 1e-9)


def test_large_steps_are_examined_more_often() -> None:
    assert len(schedule(20_000, 64, 1024).examinations) > len(schedule(20_000, 2, 16).examinations)
