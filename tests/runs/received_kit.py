"""A run folder as somebody may have sent it, and commands on it in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import warm_process
from regard.config import to_toml
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.runs import Run, environment
from regard.train import Experiment, TrainConfig, train

TEXT = "to be or not to be, that is the question\n" * 40


def make(folder: Path) -> Path:
    """A trained run of two checkpoints in ``folder/runs/one``, whose text is ``folder/text.txt``."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    model = GPTConfig(context=16, layers=1, heads=2, width=16, position={"kind": "rotary"})  # type: ignore[arg-type]
    settings = TrainConfig(steps=4, log_every=1, save_every=2, keep=3, evaluate_every=None, device="cpu")
    experiment = Experiment(model, TextConfig(path="text.txt", batch=4), train=settings)
    before = os.getcwd()
    os.chdir(folder)
    try:
        run = Run.create(Path("runs"), "one", to_toml(experiment), environment())
        train(experiment, run, [])
    finally:
        os.chdir(before)
    return folder / "runs" / "one"


def copy(trained: Path, folder: Path) -> Path:
    """A copy of the run and its text in another folder."""
    shutil.copytree(trained.parents[1], folder, dirs_exist_ok=True)
    return folder / "runs" / "one"


def regard(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``; one that waits for a FIFO ends by a signal."""
    return warm_process.regard(folder, *words)


def one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command refused, in one line with these words."""
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("regard: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in last
