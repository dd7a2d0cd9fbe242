"""Trials: each is trained once, in its own process; what is done is read, what is half done continues bit by bit."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from regard.config import override
from regard.errors import UserError
from regard.recipes import recipe
from regard.runs import Run
from regard.train import Experiment
from regard.trials import Trial, train_trials
from regard.trials.pool import RESULTS, finished, gpus, run_trial

SMALL = (
    "--data.problem=copy",
    "--data.size=2",
    "--model.width=16",
    "--model.layers=1",
    "--model.heads=2",
    "--data.batch=4",
    "--train.steps=6",
    "--train.evaluate_every=2",
    "--train.evaluate_tokens=64",
    "--train.device=cpu",
)


def small(*changes: str) -> Experiment:
    return override(recipe("toy-copy", *SMALL), changes)


def test_outcomes_equal_a_training_of_the_same_experiment_and_are_not_repeated(tmp_path: Path) -> None:
    trials = [Trial("one", small()), Trial("two", small("--seed=2"))]
    told: list[str] = []
    found = dict(train_trials(trials, tmp_path, workers=2, say=told.append))
    assert len(told) == 2
    for trial, outcome in found.items():
        alone = run_trial(tmp_path / "alone", trial)
        assert (outcome.loss, outcome.steps, outcome.tokens) == (alone.loss, alone.steps, alone.tokens)
        assert [r["step"] for r in outcome.curve()] == [2, 4, 6]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert dict(train_trials(trials, tmp_path, workers=1)) == found
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_a_changed_experiment_is_another_run(tmp_path: Path) -> None:
    assert Trial("a", small()).run_name != Trial("a", small("--train.steps=7")).run_name
    assert Trial("a/../b c", small()).run_name.startswith("a-..-b-c-")


def test_a_diverged_training_is_an_outcome(tmp_path: Path) -> None:
    bad = small("--train.optimizer.kind=adamw", "--train.optimizer.lr=1e30", "--train.clip=none")
    outcome = run_trial(tmp_path, Trial("bad", bad))
    assert outcome.loss == math.inf
    assert outcome.problem is not None
    assert outcome.problem.startswith("diverged at step")
    [(_, again)] = train_trials([Trial("bad", bad)], tmp_path)
    assert again == outcome


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"loss": "a"}', '{"loss": 1.0, "steps": null}'])
def test_a_damaged_result_does_not_count(tmp_path: Path, text: str) -> None:
    trial = Trial("one", small("--train.steps=2"))
    outcome = run_trial(tmp_path, trial)
    assert finished(tmp_path, trial) == outcome
    (tmp_path / RESULTS / f"{trial.run_name}.json").write_text(text)
    assert finished(tmp_path, trial) is None


LONG = ("--train.steps=150", "--train.save_every=20", "--train.log_every=1")
SCRIPT = """
import sys
from pathlib import Path
from tests.trials.test_trials import LONG, Trial, small, run_trial
run_trial(Path(sys.argv[1]), Trial("one", small(*LONG)))
"""


def test_an_interrupted_trial_continues_to_the_same_loss(tmp_path: Path) -> None:
    trial = Trial("one", small(*LONG))
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "cut")], cwd=root)
    folder = tmp_path / "cut" / trial.run_name
    while not (folder.exists() and Run.open(folder).steps()):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert Run.open(folder).steps()[-1] < 150
    [(_, outcome)] = train_trials([trial], tmp_path / "cut")
    assert outcome.loss == run_trial(tmp_path / "whole", trial).loss
    assert json.loads((tmp_path / "cut" / RESULTS / f"{trial.run_name}.json").read_text())["steps"] == 150


def test_a_bounded_evaluation_reads_batches_from_all_over_the_validation_part() -> None:
    whole = small("--train.evaluate_tokens=none")
    data = whole.data.build(whole.model.context)
    every = [batch.inputs for batch in whole.validation_batches(data)]
    assert data.validation_count is not None
    third = replace(whole, train=replace(whole.train, evaluate_tokens=round(data.validation_count / 3)))
    some = [batch.inputs for batch in third.validation_batches(data)]
    assert all(map(torch.equal, some, islice(every, 0, None, 3)))
    assert abs(len(some) - len(every) / 3) <= 1


ENDLESS = ("--train.steps=100000", *LONG[1:])
POOL = """
import sys
from pathlib import Path
from tests.trials.test_trials import ENDLESS, Trial, small, train_trials
if __name__ == "__main__":
    list(train_trials([Trial("one", small(*ENDLESS))], Path(sys.argv[1]), workers=1))
"""


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(POOL)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path / "out")], cwd=root, env=environment)
    folder = tmp_path / "out" / Trial("one", small(*ENDLESS)).run_name
    while not (folder.exists() and Run.open(folder).steps()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(600):
        try:
            with Run.open(folder).lock():  # free when the worker has saved a checkpoint and left the training
                return
        except UserError:
            time.sleep(0.1)
    pytest.fail("the worker goes on")


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    anywhere = small("--train.device=auto")
    assert gpus([anywhere]) == ["0", "1", "2"]
    assert gpus([anywhere, small("--train.device=cpu")]) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert gpus([anywhere]) == ["4", "5", "7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus([anywhere]) == []
