"""How much of the validation part a run evaluates: what fits into a share of its training time, decided once.

The size depends on the clock, and what follows from it (the losses, early stopping) must not: so it is written into
the config as ``evaluate_tokens`` before the first evaluation, and a run that is resumed or trained again has the same.
"""

import math
import statistics
import time
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from regard.train.device import synchronize
from regard.train.engine import Engine
from regard.train.evaluate import evaluate
from regard.train.experiment import Experiment

#: Batches, and targets, that are evaluated in any case.
FEWEST, FEWEST_TARGETS = 8, 1024
TIMED = 4  # batches


class EvaluationTime(NamedTuple):
    """The batches of the whole validation part on this rank, and the seconds that each of them takes."""

    batches: int
    seconds: float


def time_evaluation(engine: Engine) -> EvaluationTime:
    """Time a few validation batches. The first one is slower, so it counts only if it is the only one."""
    whole = replace(engine.experiment, train=replace(engine.experiment.train, evaluate_tokens=None))
    batches, timed = engine.validation_batches(whole), []
    for batch in islice(batches, TIMED):
        started = time.perf_counter()
        evaluate(engine, [batch])
        synchronize(engine.device)
        timed.append(time.perf_counter() - started)
    count = len(timed) + sum(1 for _ in batches)
    return EvaluationTime(count, statistics.median(timed[1:] or timed) if timed else 0.0)


def stride_within(seconds: float, time: EvaluationTime, targets: int) -> int:
    """The least power of two of which every so-many-th batch takes at most ``seconds``, unless that is too few.

    Powers of two, so that two runs of one config on one machine mostly evaluate the same batches. ``targets``: of the
    whole validation part.
    """
    least = max(FEWEST, FEWEST_TARGETS * time.batches / max(targets, 1))
    stride = 1
    while time.batches / stride * time.seconds > seconds and time.batches / (2 * stride) >= least:
        stride *= 2
    return stride


def batches_of(experiment: Experiment, time: EvaluationTime, targets: int | None, trained: float) -> int:
    """The number of batches that an evaluation has, the first one of which comes after ``trained`` seconds."""
    train = experiment.train
    if targets is None:
        stride = 1
    elif train.evaluate_tokens is not None:
        stride = max(1, round(targets / train.evaluate_tokens))
    elif train.evaluate_share is not None:
        stride = stride_within(train.evaluate_share * trained, time, targets)
    else:
        stride = 1
    return math.ceil(time.batches / stride)


def undecided(engine: Engine) -> bool:
    """Whether the first evaluation has to say how much is evaluated."""
    train = engine.experiment.train
    open_ = train.evaluate_tokens is None and train.evaluate_share is not None
    return open_ and engine.data.validation_count is not None


def decided(engine: Engine, time: EvaluationTime, most: float = math.inf) -> Experiment:
    """The experiment with its ``evaluate_tokens``, the same on every rank; ``most``: seconds of an evaluation."""
    experiment, targets = engine.experiment, engine.data.validation_count or 0
    share = experiment.train.evaluate_share or 0.0
    stride = stride_within(min(most, share * engine.progress.seconds), time, targets)
    stride = engine.world.broadcast(stride)
    return replace(experiment, train=replace(experiment.train, evaluate_tokens=max(1, round(targets / stride))))
