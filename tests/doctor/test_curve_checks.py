"""Checks of the doctor on constructed loss curves, and the changes that they suggest."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from check_kit import a_run, kinds
from hypothesis import given
from hypothesis import strategies as st

from regard.doctor import Finding
from regard.doctor.check import Check, explained
from regard.doctor.checks.gradients import ExplodingGradients
from regard.doctor.checks.initial_loss import InitialLoss
from regard.doctor.checks.learning_rate import LearningRateTooHigh, LearningRateTooLow
from regard.doctor.checks.loss_spike import spike
from regard.doctor.checks.overfitting import Overfitting
from regard.doctor.checks.stopping import WrongStop
from regard.doctor.context import History, TrainingRun
from regard.models import GPTConfig, RecurrentConfig
from regard.train import ConstantScheduleConfig, Experiment, TrainingStep


class Curves:
    """Losses as if a run had logged them, and what the checks of such numbers find."""

    def __init__(self, losses: list[float], updates: tuple[float, ...] = (0.01,), warmup: float = 0.0) -> None:
        self.schedule, self.vocabulary, self.history = ConstantScheduleConfig(warmup=warmup), 10**9, History()
        for step, loss in enumerate(losses, start=1):
            self.history.add(step, loss, 1e-3 * self.schedule.factor(step - 1, len(losses)), 1.0)
        self.history.updates += updates

    def findings(self) -> list[Finding]:
        run = a_run(self.vocabulary, steps=len(self.history.steps), schedule=self.schedule)
        checks: list[type[Check]] = [LearningRateTooHigh, LearningRateTooLow, ExplodingGradients, Overfitting]
        found = [finding for check in checks for finding in check(run).on_history(self.history)]
        return [one for one in found if not explained(one, found)]


def curves(*given: Any, **named: Any) -> Curves:
    return Curves(*given, **named)


FALLING = [3.0 - 1.5 * i / 60 for i in range(60)]


def test_a_loss_that_falls_is_well() -> None:
    assert kinds(curves(FALLING).findings()) == []
    assert kinds(curves(FALLING, (0.2, 0.1)).findings()) == []


def test_a_rate_is_too_high_when_the_loss_and_the_weights_say_so() -> None:
    worse = [3.0, 3.3, 4.1, 4.2, 4.0] + [3.9] * 40
    assert kinds(curves(worse, (0.4,), warmup=5).findings()) == [("rate_too_high", "train.optimizer.lr")]
    assert kinds(curves(worse, (1e-3,)).findings()) == []
    recovered = [3.0, 3.6, 3.8, 3.7, 3.3, *FALLING]
    assert kinds(curves(recovered, (0.4,)).findings()) == [("rate_too_high", "train.schedule.warmup")]


def test_a_rate_is_too_low_when_nothing_moves() -> None:
    still = [3.0 - 1e-4 * i for i in range(60)]
    assert kinds(curves(still, (1e-4,)).findings()) == [("rate_too_low", "train.optimizer.lr")]
    assert kinds(curves(still, (1e-2,)).findings()) == []
    assert kinds(curves(still, (1e-5,), warmup=6000).findings()) == [("rate_too_low", "train.schedule.warmup")]
    assert kinds(curves(FALLING, (1e-3,), warmup=6000).findings()) == [("rate_too_low", "train.schedule.warmup")]


def test_a_model_that_hardly_moves_and_knows_little() -> None:
    slow = [3.0 - 0.005 * i for i in range(60)]
    assert kinds(curves(slow, (5e-4,)).findings()) == []  # a model that is trained on
    made = curves(slow, (5e-4,))
    made.vocabulary = 21
    assert kinds(made.findings()) == [("rate_too_low", "train.optimizer.lr")]


def set_norms(made: Curves, norms: list[float]) -> None:
    made.history.steps = [step._replace(norm=norm) for step, norm in zip(made.history.steps, norms, strict=True)]


def test_gradients_that_grow_throughout() -> None:
    made = curves([2.0 - 0.01 * i for i in range(80)])
    set_norms(made, [1.0 + 0.01 * i for i in range(80)])
    assert kinds(made.findings()) == []
    set_norms(made, [1.0 + 0.5 * i for i in range(80)])
    assert kinds(made.findings()) == []  # from 10 to 35: more, but not without end
    set_norms(made, [1.08**i for i in range(80)])
    assert kinds(made.findings()) == [("exploding_gradients", "")]


def test_a_jump_is_more_than_losses_vary() -> None:
    losses = [2.0 + 0.02 * (i % 3) for i in range(20)]
    assert spike(losses) is None
    assert spike([*losses, 2.6]) == pytest.approx(0.56)
    noisy = [2.0 + 0.4 * (i % 3) for i in range(20)]
    assert spike([*noisy, 3.1]) is None
    assert spike([]) is None


def test_overfitting_needs_both_losses() -> None:
    made = curves(FALLING)
    made.history.validation = [(20, 2.6), (40, 2.7), (60, 2.9)]
    assert kinds(made.findings()) == [("overfitting", "")]
    made.history.validation = [(20, 2.6), (40, 2.3), (60, 2.2)]
    assert kinds(made.findings()) == []


def test_the_history_of_a_folder() -> None:
    history = History()
    logged = {"step": 1, "loss": 3.0, "lr": 1e-3, "grad_norm": 2.0}
    infinite = {"step": 2, "loss": "NaN", "lr": 1e-3, "grad_norm": "NaN"}
    history.read([logged, infinite, {"step": 2, "validation_loss": 2.5}, {"step": 2, "gradients": {}}])
    history.add(3, math.nan, 1e-3, 1.0)
    assert history.steps == [(1, 3.0, 1e-3, 2.0)]
    assert history.validation == [(2, 2.5)]


def test_a_suggested_change_differs_from_the_setting() -> None:
    run = a_run()
    normalized = TrainingRun(Experiment(GPTConfig(vocabulary=20, qk_norm=True)))
    recurrent = TrainingRun(Experiment(RecurrentConfig(vocabulary=20)))
    changes = "--model.qk_norm true", "a lower --train.optimizer.lr"
    plain = TrainingRun(Experiment(GPTConfig(vocabulary=20, qk_norm=False)))
    assert Overfitting(plain).finding("", "", "", *changes).change == ", or ".join(changes)
    for other in (normalized, recurrent):
        assert Overfitting(other).finding("", "", "", *changes).change == changes[1]
    assert Overfitting(normalized).finding("", "", "", changes[0]).change == "follow the evidence: no setting fixes it"
    same = f"--train.clip {run.experiment.train.clip}"
    assert same not in Overfitting(run).finding("", "", "", f"{same}, which limits the damage", "more text").change


def test_all_checks_suggest_one_learning_rate() -> None:
    """Curves that look too high and, without measured updates, too low as well."""
    losses = [3.0, *[3.3] * 30, *[3.0] * 30]
    found = curves(losses, updates=()).findings()
    changes = [re.findall(r"--train.optimizer.lr ([\d.e-]+)", finding.change) for finding in found]
    assert len({rate for rates in changes for rate in rates}) == 1
    assert [finding.kind for finding in found] == ["rate_too_high"]


def test_a_first_loss_is_compared_with_a_uniform_guess() -> None:
    check = InitialLoss(a_run(vocabulary=4099))
    guess = math.log(4099)
    step = TrainingStep(1, guess + 0.05, 0.1, 1.0, 1, 1.0)
    assert not list(check.on_step(step))
    assert not list(check.on_step(step._replace(loss=guess + 1, terms={"next_token": guess, "balance": 1.0})))
    assert not list(check.on_step(step._replace(step=2, loss=guess - 3)))
    (finding,) = check.on_step(step._replace(loss=12.4))
    assert "12.40 before any update, and 8.32" in finding.evidence
    records = [
        {"step": 0, "entropy": {}},
        {"step": 1, "loss": 12.4},
        {"step": 1, "gradients": {}},
        {"step": 2, "loss": 9.0},
    ]
    assert [one.evidence for one in check.on_records(records)] == [finding.evidence]
    assert not list(check.on_records([{"step": 1, "loss": "NaN"}]))


@given(st.lists(st.floats(0.5, 5.0), min_size=2, max_size=30, unique=True), st.integers(1, 5), st.booleans())
def test_early_stopping_by_the_right_sign_is_well(losses: list[float], patience: int, right: bool) -> None:
    records, best, failures = [], math.inf, 0
    for number, loss in enumerate(losses, start=1):
        records.append({"step": 10 * number, "validation_loss": loss})
        watched = loss if right else -loss
        best, failures = min(best, watched), 0 if watched < best else failures + 1
        if failures == patience:
            break
    steps = 1000 if failures == patience else records[-1]["step"]
    found = list(WrongStop(a_run(steps=steps, patience=patience)).on_end(records))
    seen = [one["validation_loss"] for one in records]
    improved = steps == 1000 and len(seen) > patience and min(seen[-patience:]) < min(seen[:-patience])
    assert kinds(found) == [("wrong_stop", "train.patience")] * improved
    assert not (right and improved)
