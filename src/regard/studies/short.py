"""A short training outside any run folder, for studies that need many."""

from __future__ import annotations

import math
import statistics
from typing import Any

from regard.train import Experiment
from regard.train.engine import Engine
from regard.train.shard import World

LAST = 10  # losses that are averaged


def train_shortly(experiment: Experiment, data: Any, keep: list[Any] | None = None) -> float:
    """Train for the experiment's steps; the mean of the last losses, infinite if one was not finite.

    The trained model is put into ``keep``.
    """
    engine = Engine(experiment, data, World())
    losses = []
    for _ in range(experiment.train.steps or 0):
        update = engine.update()
        if not update.finite:
            return math.inf
        losses.append(update.loss)
    if keep is not None:
        keep.append(engine.model)
    return statistics.fmean(losses[-LAST:])
