"""What a run leaves behind: records, evaluations, checkpoints, and the config it really was."""

import inspect
import shutil
import textwrap
import threading

import pytest
import torch
from train_kit import TRAIN, experiment, run_whole, start, weights

from regard.config import load, override
from regard.errors import UserError
from regard.train import Experiment, Observer, TrainConfig, train


def test_metrics_are_the_truth(text, tmp_path):
    wanted = experiment(text, log_every=3, evaluate_every=4)
    run = run_whole(tmp_path, wanted)
    records = run.metrics()
    logged = [record for record in records if "loss" in record]
    evaluated = [record for record in records if "validation_loss" in record]
    assert [record["step"] for record in logged] == [1, 3, 6, 8]
    assert [record["step"] for record in evaluated] == [4, 8]
    assert all(
        set(record) == {"step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_second", "memory"}
        for record in logged
    )
    assert logged[-1]["tokens"] == 8 * 4 * 8
    assert logged[-1]["memory"] > 2**20
    lr = wanted.train.schedule.factor(7, 8) * 1e-2
    assert logged[-1]["lr"] == pytest.approx(lr)


def test_the_model_learns(text, tmp_path):
    wanted = experiment(text, model={"dropout": 0.0}, steps=60, evaluate_every=None, save_every=None)
    result = train(wanted, start(tmp_path, wanted))
    assert result.validation_loss is not None
    assert result.validation_loss < 1.9  # the entropy of a uniform guess is 2.7


def test_the_vocabulary_comes_from_the_data_and_is_written_down(text, tmp_path):
    run = run_whole(tmp_path, experiment(text))
    letters = len(set(text.read_text(encoding="utf-8")))
    assert load(Experiment, run.config).model.vocabulary == letters  # type: ignore[attr-defined]


def test_checkpoints_are_kept_as_asked(text, tmp_path):
    run = run_whole(tmp_path, experiment(text, save_every=2, keep=3))
    assert run.steps() == [4, 6, 8]


def test_without_held_out_text_nothing_is_evaluated(text, tmp_path):
    wanted = override(experiment(text), ["--data.validation", "0"])
    run = start(tmp_path, wanted)
    assert train(wanted, run).validation_loss is None


def test_observers_hear_everything_in_order(text, tmp_path):
    heard = []

    class Ear(Observer):
        def started(self, start):
            heard.append(("started", start.step, start.experiment.train.steps))

        def stepped(self, step):
            heard.append(("stepped", step.step, step.tokens))

        def evaluated(self, step, measures):
            heard.append(("evaluated", step, sorted(measures)))

        def saved(self, step, path):
            heard.append(("saved", step, path.name))

        def finished(self, result):
            heard.append(("finished", result.step, result.interrupted))

    wanted = experiment(text, steps=2, save_every=None, evaluate_every=None)
    train(wanted, start(tmp_path, wanted), [Ear()])
    assert heard == [
        ("started", 0, 2),
        ("stepped", 1, 32),
        ("stepped", 2, 64),
        ("evaluated", 2, ["validation_loss"]),
        ("saved", 2, "run"),
        ("finished", 2, False),
    ]


def test_the_example_of_an_observer_prints_every_step(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = inspect.getdoc(Observer).split("\n\n", 1)[1].rpartition("\n\nReturn values")[0]  # type: ignore[union-attr]
    code = textwrap.dedent(example)
    assert len(code.splitlines()) <= 15
    exec(compile(code.replace('path="text.txt"', 'path="text.txt", batch=1'), "example", "exec"), {})
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 1", "step 2", "step 3"]


def test_trains_outside_the_main_thread(text, tmp_path):
    wanted = experiment(text, steps=2)
    results = []
    run = start(tmp_path, wanted)
    thread = threading.Thread(target=lambda: results.append(train(wanted, run)))
    thread.start()
    thread.join()
    assert results[0].step == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="compiling for the CPU needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when its compiler is imported
def test_a_compiled_run_trains_as_an_uncompiled_one(text, tmp_path):
    def trained(name: str, compile: bool):
        return run_whole(tmp_path, experiment(text, model={"dropout": 0.0}, compile=compile), name)

    eager, compiled = trained("eager", False), trained("compiled", True)
    other = weights(compiled)
    for name, tensor in weights(eager).items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-4, msg=name)
    a, b = eager.metrics()[-1], compiled.metrics()[-1]
    assert a["validation_loss"] == pytest.approx(b["validation_loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["--train.steps", "none"], "budget"),
        (["--train.seconds", "3", "--train.tokens", "100"], "tokens and seconds"),
        (["--train.accumulate", "0"], "accumulate"),
        (["--train.clip", "0"], "clip"),
        (["--train.keep", "0"], "keep"),
        (["--train.seconds=-1"], "seconds"),
        (["--train.compile", "true", "--train.device", "mps"], "compile"),
        (["--seed", str(2**63)], "seed"),
    ],
)
def test_impossible_settings_are_refused_by_name(text, changes, named):
    with pytest.raises(UserError, match=named):
        override(experiment(text), changes)


def test_a_config_made_in_code_is_checked_too(text, tmp_path):
    from dataclasses import replace

    good = experiment(text)
    run = start(tmp_path, good)
    with pytest.raises(UserError, match="budget"):
        train(replace(good, train=replace(TRAIN, steps=None)), run)


@pytest.mark.parametrize("device", ["warp", "cpu:1", "cpu:", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(text, tmp_path, device):
    wanted = experiment(text, device=device)
    with pytest.raises(UserError, match=rf"'{device}'.*--train.device from: auto.*cpu"):
        train(wanted, start(tmp_path, wanted))


def test_the_command_line_reaches_every_part():
    optimizer = ["--train.optimizer", "muon", "--train.optimizer.rest_lr", "1e-3"]
    schedule = ["--train.schedule", "noam", "--train.schedule.warmup", "100"]
    changed = override(Experiment(), [*optimizer, *schedule, "--train.compile", "false", "--task.logits", "1000"])
    train: TrainConfig = changed.train
    assert (train.optimizer.kind, train.optimizer.rest_lr) == ("muon", 1e-3)  # type: ignore[attr-defined]
    assert (train.schedule.kind, train.compile) == ("noam", False)
