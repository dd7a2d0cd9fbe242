"""A resumed run ends bit-identical to one that was never stopped, and every forgotten counter shows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from train_kit import MODEL, TRAIN, RowsConfig, experiment, newest, run_whole, same, start, weights

from regard.commands.resume import replanned
from regard.config import load
from regard.data import TextConfig
from regard.errors import UserError
from regard.parallel.world import World
from regard.train import (
    ConstantScheduleConfig,
    Experiment,
    MuonConfig,
    Observer,
    TrapezoidScheduleConfig,
    checkpoint,
    train,
)
from regard.train.engine import Engine


class Killed(Exception):
    pass


class KillAt(Observer):
    """Ends the run the hard way in the middle of things."""

    def __init__(self, step: int):
        self.step = step

    def stepped(self, step):
        if step.step == self.step:
            raise Killed


def _killed(folder, wanted, at: int):
    run = start(folder, wanted, "broken")
    with pytest.raises(Killed):
        train(wanted, run, [KillAt(at)])
    return run


@pytest.mark.parametrize("kill", [2, 4, 5, 8])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_bit_identical(text, tmp_path, kill, optimizer):
    training: dict[str, Any] = {"accumulate": 2, "save_every": 3}
    if optimizer == "muon":
        training |= {"optimizer": MuonConfig(), "schedule": TrapezoidScheduleConfig()}
    wanted = experiment(text, **training)
    whole = run_whole(tmp_path, wanted)
    run = _killed(tmp_path, wanted, kill)
    result = train(load(Experiment, run.config), run, resume=True)
    assert (result.step, result.interrupted) == (8, False)
    assert same(weights(run), weights(whole))
    assert same(newest(run).optimizer(), newest(whole).optimizer())
    kept = ("step", "loss", "lr", "grad_norm", "tokens", "validation_loss")
    assert [{k: r.get(k) for k in kept} for r in run.metrics()] == [
        {k: r.get(k) for k in kept} for r in whole.metrics()
    ]


def _forget(monkeypatch, forgotten: str) -> None:
    """Leave one part of a checkpoint out when it is restored."""
    plain = checkpoint.restore_progress

    def without(progress, checkpoint):
        before = replace(progress)
        plain(progress, checkpoint)
        setattr(progress, forgotten, getattr(before, forgotten))

    if forgotten in ("step", "position"):
        monkeypatch.setattr(checkpoint, "restore_progress", without)
    else:
        monkeypatch.setattr(checkpoint, f"restore_{forgotten}", lambda *anything: None)


@pytest.mark.parametrize("forgotten", ["step", "position", "optimizer", "model"])
def test_whatever_is_forgotten_shows_in_the_weights(text, tmp_path, monkeypatch, forgotten):
    wanted = experiment(text)
    whole = run_whole(tmp_path, wanted)
    run = _killed(tmp_path, wanted, 5)
    _forget(monkeypatch, forgotten)
    train(load(Experiment, run.config), run, resume=True)
    assert newest(run).step == newest(whole).step == 8
    assert not same(weights(run), weights(whole))


def test_the_loss_scale_is_restored():
    from regard.train.precision import Scaler

    old, new = Scaler(True), Scaler(True)
    old.update(overflow=True)
    old.update(overflow=False)
    new.load(old.state())
    assert (new.scale, new.good) == (2.0**15, 1)


def test_what_others_draw_from_the_generators_changes_nothing(text, tmp_path):
    class Gambler(Observer):
        def stepped(self, step):
            torch.rand(step.step)

    wanted = experiment(text)
    whole = run_whole(tmp_path, wanted)
    other = start(tmp_path, wanted, "other")
    torch.manual_seed(99)
    train(wanted, other, [Gambler()])
    assert same(weights(other), weights(whole))


def test_another_seed_is_another_run(text, tmp_path):
    wanted = experiment(text)
    a, b = run_whole(tmp_path, wanted, "a"), run_whole(tmp_path, replace(wanted, seed=8), "b")
    assert not same(weights(a), weights(b))


def test_weights_are_a_function_of_the_seed_alone():
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        torch.rand(seed)
        wanted = Experiment(MODEL, RowsConfig(), train=TRAIN, seed=seed)
        return dict(Engine(wanted, wanted.data.build(8), World()).model.named_parameters())

    assert same(fresh(1), fresh(1))
    assert not same(fresh(1), fresh(2))


def test_a_finished_run_has_nothing_left_to_do(text, tmp_path):
    wanted = experiment(text)
    run = run_whole(tmp_path, wanted)
    before, metrics = weights(run), run.metrics()
    result = train(load(Experiment, run.config), run, resume=True)
    assert result.step == 8
    assert (result.loss, result.validation_loss) == (metrics[-2]["loss"], metrics[-1]["validation_loss"])
    assert same(weights(run), before)
    assert run.metrics() == metrics


def _extended(run, steps: int):
    """The experiment of `regard resume RUN --steps N`."""
    return replanned(load(Experiment, run.config), steps, newest(run).step)


def test_a_run_extended_is_the_longer_run_where_its_schedule_does_not_look_ahead(text, tmp_path):
    """With a constant rate nothing in a step depends on how many follow: every bit must be that of the longer run."""
    wanted = experiment(text, schedule=ConstantScheduleConfig())
    whole = run_whole(tmp_path, wanted)
    run = run_whole(tmp_path, replace(wanted, train=replace(wanted.train, steps=5)), "short")
    before = run.metrics()
    result = train(_extended(run, 8), run, resume=True)
    assert (result.step, result.steps) == (8, 8)
    assert same(weights(run), weights(whole))
    assert same(newest(run).optimizer(), newest(whole).optimizer())
    assert run.metrics()[: len(before)] == before
    losses = [[(m["step"], m["loss"]) for m in r.metrics() if "loss" in m] for r in (run, whole)]
    assert losses[0] == losses[1]


def test_an_extended_run_follows_the_longer_schedule_and_can_itself_be_resumed(text, tmp_path):
    wanted = experiment(text, steps=4, save_every=3)
    ends = []
    for name, kill in (("straight", None), ("broken", 6)):
        run = run_whole(tmp_path, wanted, name)
        longer = _extended(run, 9)
        if kill is not None:
            with pytest.raises(Killed):
                train(longer, run, [KillAt(kill)], resume=True)
            longer = load(Experiment, run.config)
        train(longer, run, resume=True)
        ends.append(weights(run))
        rates = {m["step"]: m["lr"] for m in run.metrics() if "lr" in m}
        schedule = wanted.train.schedule
        assert rates == pytest.approx({s: 1e-2 * schedule.factor(s - 1, 4 if s <= 4 else 9) for s in range(1, 10)})
    assert same(*ends)


def test_the_config_says_how_a_plan_was_changed(text, tmp_path):
    run = run_whole(tmp_path, experiment(text, steps=3, tokens=64))
    assert run.config["train"]["budget"] == "64 tokens"
    for steps in (4, 6):
        train(_extended(run, steps), run, resume=True)
    assert run.config["train"]["steps"] == 6
    follows = "the schedule follows the newer plan"
    assert run.config["train"]["budget"] == (
        f"64 tokens; 2 steps planned, 4 from step 2 on; {follows}; 4 steps planned, 6 from step 4 on; {follows}"
    )
    same_plan = load(Experiment, run.config)
    assert replanned(same_plan, 6, 6) == same_plan


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(text, tmp_path):
    wanted = experiment(text)
    whole = run_whole(tmp_path, wanted)
    run = _killed(tmp_path, wanted, 3)
    assert run.steps() == []
    train(load(Experiment, run.config), run, resume=True)
    assert same(weights(run), weights(whole))
    assert [r["step"] for r in run.metrics() if "loss" in r] == list(range(1, 9))


def test_a_run_with_checkpoints_is_not_started_anew(text, tmp_path):
    wanted = experiment(text)
    run = run_whole(tmp_path, wanted)
    with pytest.raises(UserError, match="regard resume"):
        train(wanted, run)


def test_a_changed_validation_file_is_refused(text, tmp_path):
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("the cat sat on a rat. " * 5)
    wanted = experiment(text)
    run = _killed(tmp_path, replace(wanted, data=TextConfig(path=str(text), validation_path=str(held_out), batch=4)), 5)
    held_out.write_text("the rat sat on a cat. " * 5)
    with pytest.raises(UserError, match="data"):
        train(load(Experiment, run.config), run, resume=True)


def test_changed_data_is_refused(text, tmp_path):
    run = _killed(tmp_path, experiment(text), 5)
    text.write_text(text.read_text(encoding="utf-8").replace("cat", "tac"), encoding="utf-8")
    with pytest.raises(UserError, match="data"):
        train(load(Experiment, run.config), run, resume=True)
