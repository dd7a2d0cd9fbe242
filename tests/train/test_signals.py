"""Ctrl-C and SIGTERM in a real process: saved at the end of the step, resumed to the same bits."""

import os
import subprocess
from pathlib import Path

import pytest
from train_kit import experiment, newest, run_whole, same, start, weights

from regard.config import load
from regard.runs import Run
from regard.train import Experiment, train
from warm_process import python

PROGRAM = Path(__file__).with_name("signalled_run.py")


def _child(run: Run, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(PROGRAM.read_text(), Path.cwd(), str(run.path), *arguments, environment=os.environ)


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_saves_says_how_to_go_on_and_resumes_identically(text, tmp_path, name):
    wanted = experiment(text)
    whole = run_whole(tmp_path, wanted)
    run = start(tmp_path, wanted)
    done = _child(run, name, "5")
    # The signal arrives while observers of step 5 are told; step 6 is then the one that is finished and saved.
    assert done.returncode == 130, done.stderr
    assert newest(run).step in (5, 6)
    assert f"regard resume {run.path}" in done.stderr
    train(load(Experiment, run.config), run, resume=True)
    assert newest(run).step == 8
    assert same(weights(run), weights(whole))


@pytest.mark.slow
def test_a_second_signal_ends_at_once(text, tmp_path):
    wanted = experiment(text)
    run = start(tmp_path, wanted)
    done = _child(run, "SIGINT", "5", "2")
    assert "KeyboardInterrupt" in done.stderr
    assert newest(run).step == 4
