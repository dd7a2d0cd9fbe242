"""A run for single checks of the doctor, and the names of findings."""

from __future__ import annotations

import math
from typing import Any

from regard.doctor.context import TrainingRun
from regard.models import GPTConfig
from regard.train import Experiment, TrainConfig


def a_run(vocabulary: int = 20, epoch: float = math.inf, **train: Any) -> TrainingRun:
    data: Any = type("Epochs", (), {"epoch": lambda self, size: epoch, "specials": None})()
    return TrainingRun(Experiment(GPTConfig(vocabulary=vocabulary), train=TrainConfig(**train)), data=data)


def kinds(found: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in found]
