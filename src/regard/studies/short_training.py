"""Short training runs without a run folder, for studies that need many."""

import math
import statistics
import time
from typing import NamedTuple

from regard.data import Data
from regard.models.base import LanguageModel
from regard.models.device import find_device
from regard.train import Experiment
from regard.train.engine import Engine
from regard.train.shard import World

LAST = 10  # losses that are averaged


class ShortRun(NamedTuple):
    """A trained model, and the mean of its last losses; infinite if a loss was not finite."""

    model: LanguageModel
    loss: float
    engine: Engine
    tokens_per_second: float


def train_shortly(experiment: Experiment, data: Data) -> ShortRun:
    """Train for the experiment's number of steps."""
    engine = Engine(experiment, data, World(device=find_device(experiment.train.device)))
    assert isinstance(engine.model, LanguageModel)
    losses, began = [], time.perf_counter()
    for _ in range(experiment.train.steps or 0):
        update = engine.update()
        losses.append(update.loss if update.finite else math.inf)
        if not update.finite:
            break
    rate = engine.progress.tokens / (time.perf_counter() - began)
    return ShortRun(engine.model, statistics.fmean(losses[-LAST:]), engine, rate)
