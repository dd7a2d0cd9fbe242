"""Short training runs without a run folder, for studies that need many."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

from regard.models.base import LanguageModel
from regard.train import Experiment
from regard.train.engine import Engine
from regard.train.shard import World

LAST = 10  # losses that are averaged


class ShortRun(NamedTuple):
    """A trained model and the mean of its last losses; infinite if a loss was not finite."""

    model: LanguageModel
    loss: float


def train_shortly(experiment: Experiment, data: Any) -> ShortRun:
    """Train for the experiment's number of steps."""
    engine = Engine(experiment, data, World())
    assert isinstance(engine.model, LanguageModel)
    losses = []
    for _ in range(experiment.train.steps or 0):
        update = engine.update()
        if not update.finite:
            return ShortRun(engine.model, math.inf)
        losses.append(update.loss)
    return ShortRun(engine.model, statistics.fmean(losses[-LAST:]))
