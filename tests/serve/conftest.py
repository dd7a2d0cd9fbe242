"""A folder with a small run that was really trained, and a server of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serve_kit import Served, serving

from regard.config import to_toml
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.runs import Run, environment
from regard.train import AdamWConfig, Experiment, TrainConfig, train

TEXT = "to be or not to be, that is the question\n"


def trained(folder: Path, name: str, wanted: Experiment) -> Run:
    run = Run.create(folder, name, to_toml(wanted), environment())
    train(wanted, run, [])
    run.sample({"step": 4, "prompt": "to", "text": " be <script>alert(1)</script>"})
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `small`, `wide` and the damaged one `broken`, and a secret beside it."""
    room = tmp_path_factory.mktemp("serve")
    patch = pytest.MonkeyPatch()
    patch.setenv("REGARD_CACHE", str(room / "cache"))
    (room / "secret.txt").write_text("root:x:0:0\n")
    (room / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    model = GPTConfig(context=32, layers=2, heads=2, width=16, zero_init=False)
    times = TrainConfig(
        steps=8, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=4, save_every=8, device="cpu"
    )
    wanted = Experiment(model, TextConfig(path=str(room / "text.txt"), batch=4, validation=0.2), train=times, seed=7)
    trained(room / "runs", "small", wanted)
    trained(room / "runs", "wide", replace(wanted, model=replace(model, width=32)))
    (room / "runs" / "broken").mkdir()
    (room / "runs" / "broken" / "config.toml").write_text("schema = 99\n")
    patch.undo()
    return room / "runs"


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[Served]:
    with serving(runs) as server:
        yield server
