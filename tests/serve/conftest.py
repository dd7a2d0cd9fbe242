"""Fixtures: a folder with small trained runs, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serve_kit import RunningServer, run_server

from regard.config import to_toml
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.runs import Run, environment
from regard.train import AdamWConfig, Experiment, TrainConfig, train

TEXT = "to be or not to be, that is the question\n"


def train_run(folder: Path, name: str, experiment: Experiment) -> Run:
    run = Run.create(folder, name, to_toml(experiment), environment())
    train(experiment, run, [])
    run.sample({"step": 4, "prompt": "to", "text": " be <script>alert(1)</script>"})
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the runs `small`, `wide` and `broken` (damaged), next to a secret file."""
    folder = tmp_path_factory.mktemp("serve")
    patch = pytest.MonkeyPatch()
    patch.setenv("REGARD_CACHE", str(folder / "cache"))
    (folder / "secret.txt").write_text("root:x:0:0\n")
    (folder / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    model = GPTConfig(context=32, layers=2, heads=2, width=16, zero_init=False)
    settings = TrainConfig(
        steps=8, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=4, save_every=8, device="cpu"
    )
    experiment = Experiment(
        model, TextConfig(path=str(folder / "text.txt"), batch=4, validation=0.2), train=settings, seed=7
    )
    train_run(folder / "runs", "small", experiment)
    train_run(folder / "runs", "wide", replace(experiment, model=replace(model, width=32)))
    (folder / "runs" / "broken").mkdir()
    (folder / "runs" / "broken" / "config.toml").write_text("schema = 99\n")
    patch.undo()
    return folder / "runs"


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[RunningServer]:
    with run_server(runs) as server:
        yield server
