"""A resumed run ends bit-identical to one that was never stopped, and every forgotten counter shows."""

from typing import Any

import pytest
import torch
from train_kit import MODEL, TRAIN, RowsConfig, experiment, newest, run_whole, same, start, weights

from regard.config import load
from regard.errors import UserError
from regard.train import Experiment, MuonConfig, Observer, TrapezoidConfig, restore, train
from regard.train.engine import Engine
from regard.train.shard import World


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
        training |= {"optimizer": MuonConfig(), "schedule": TrapezoidConfig()}
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


@pytest.mark.parametrize("forgotten", ["schedule", "data", "noise", "optimizer", "model"])
def test_whatever_is_forgotten_shows_in_the_weights(text, tmp_path, monkeypatch, forgotten):
    wanted = experiment(text)
    whole = run_whole(tmp_path, wanted)
    run = _killed(tmp_path, wanted, 5)
    monkeypatch.setattr(restore, f"restore_{forgotten}", lambda *anything: None)
    train(load(Experiment, run.config), run, resume=True)
    assert newest(run).step == newest(whole).step == 8
    assert not same(weights(run), weights(whole))


def test_the_loss_scale_is_restored():
    from regard.train.precision import Scaler

    old, new = Scaler(True), Scaler(True)
    old.update(overflow=True)
    old.update(overflow=False)
    restore.restore_scaler(new, {"scaler": old.state()})
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
    from dataclasses import replace

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


def test_changed_data_is_refused(text, tmp_path):
    run = _killed(tmp_path, experiment(text), 5)
    text.write_text(text.read_text(encoding="utf-8").replace("cat", "tac"), encoding="utf-8")
    with pytest.raises(UserError, match="data"):
        train(load(Experiment, run.config), run, resume=True)
