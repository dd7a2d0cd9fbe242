"""A tiny experiment, and runs of it that ended in different ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import to_toml
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.runs import Run, environment
from regard.train import AdamWConfig, Experiment, Observer, TrainConfig, train

MODEL = GPTConfig(context=16, layers=2, heads=2, width=16, dropout=0.2, zero_init=False)
TRAIN = TrainConfig(steps=8, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=4, save_every=4, device="cpu")


def experiment(text: Path, model: dict[str, Any] | None = None, validation: float = 0.2, **training: Any) -> Experiment:
    """The tiny experiment on `text`, changed as wished."""
    data = TextConfig(path=str(text), batch=4, validation=validation)
    return Experiment(replace(MODEL, **(model or {})), data, train=replace(TRAIN, **training), seed=7)


def start(folder: Path, wanted: Experiment, name: str = "run") -> Run:
    """A fresh run folder."""
    return Run.create(folder, name, to_toml(wanted), environment())


def trained(folder: Path, wanted: Experiment, observers: list[Observer], name: str = "run") -> Run:
    """A whole run."""
    run = start(folder, wanted, name)
    train(wanted, run, observers)
    return run
