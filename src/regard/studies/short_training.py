"""Short training runs without a run folder, for studies that need many."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from regard.data import Batch, Data, TextBatch
from regard.measure.interval import Mean, difference
from regard.models.base import LanguageModel
from regard.models.device import find_device
from regard.pages.charts import Series
from regard.parallel.world import World
from regard.train import Experiment
from regard.train.engine import Engine
from regard.train.evaluate import evaluate

LAST = 10  # losses that are averaged


class ShortRun(NamedTuple):
    """A trained model, and the mean of its last losses; infinite if a loss was not finite."""

    model: LanguageModel
    loss: float
    engine: Engine
    tokens_per_second: float
    losses: list[float]  # of each step

    def validation_loss(self, batches: Sequence[Batch]) -> float:
        """The mean loss over ``batches``; infinite if the training loss was."""
        return validation_loss(self.engine, batches) if math.isfinite(self.loss) else math.inf


class BestRun(NamedTuple):
    """A training that was stopped early: its lowest validation loss, and all of them by step."""

    loss: float
    step: int
    curve: list[tuple[int, float]]
    improving: bool  # the steps ended before the loss stopped falling


def train_shortly(experiment: Experiment, data: Data, start: Mapping[str, Tensor] | None = None) -> ShortRun:
    """Train for the experiment's number of steps, from the weights ``start`` if they are given."""
    engine = Engine(experiment, data, World(device=find_device(experiment.train.device)), start)
    assert isinstance(engine.model, LanguageModel)
    losses, began = [], time.perf_counter()
    for _ in range(experiment.train.steps or 0):
        update = engine.update()
        losses.append(update.loss if update.finite else math.inf)
        if not update.finite:
            break
    rate = engine.progress.tokens / (time.perf_counter() - began)
    return ShortRun(engine.model, statistics.fmean(losses[-LAST:]), engine, rate, losses)


def train_to_best(experiment: Experiment, data: Data, batches: Sequence[Batch], every: int, patience: int) -> BestRun:
    """Train until ``patience`` validations, ``every`` so many steps, bring no lower loss, or the steps end."""
    engine = Engine(experiment, data, World(device=find_device(experiment.train.device)))
    curve: list[tuple[int, float]] = []
    for step in range(1, (experiment.train.steps or 0) + 1):
        finite = engine.update().finite
        if finite and step % every:
            continue
        curve.append((step, validation_loss(engine, batches) if finite else math.inf))
        best = min(curve, key=lambda one: one[1])
        if not finite or step - best[0] >= patience * every:
            return BestRun(best[1], best[0], curve, False)
    best = min(curve, key=lambda one: one[1])
    return BestRun(best[1], best[0], curve, True)


def held_out(data: Data[TextBatch], size: int, count: int) -> list[TextBatch]:
    """The first ``count`` batches of the validation part."""
    return list(islice(data.validation_batches(size), count))


def validation_loss(engine: Engine, batches: Sequence[Batch]) -> float:
    """The mean loss over ``batches``."""
    result = evaluate(engine, batches)
    assert result is not None  # there are batches
    return result["validation_loss"]


def compared(a: Sequence[float], b: Sequence[float], other: str) -> str:
    """The losses ``a`` against the losses ``b``, paired by seed, in words; "no different": within the interval."""
    gap = difference(a, b)
    if not abs(gap.value) > gap.error:  # also where one is not finite
        return f"no different than {other} ({gap.value:+.3f} ± {gap.error:.3f})"
    return f"{abs(gap.value):.3f} ± {gap.error:.3f} {'lower' if gap.value < 0 else 'higher'} than {other}"


def band(name: str, losses: Mapping[float, Sequence[float]], color: int) -> Series:
    """The line of the mean losses by x, with their confidence intervals; without those that are not finite."""
    means = {x: Mean.of(found) for x, found in losses.items()}
    points = [(x, mean) for x, mean in means.items() if math.isfinite(mean.value)]
    intervals = [
        (x, mean.value - mean.error, mean.value + mean.error) for x, mean in points if math.isfinite(mean.error)
    ]
    return Series(name, [(x, mean.value) for x, mean in points], color, marks=True, band=intervals)
