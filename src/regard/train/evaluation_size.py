"""How much of the validation part a run evaluates: about a share of the work of its training, decided once.

It is decided at the first evaluation from the tokens that were trained on until then, not from the clock, so that every
machine evaluates the same. Only a budget in seconds can bound it further. It is written into the config as
``evaluate_tokens``, so a run that is resumed or trained again has the same.
"""

import math
import statistics
import time
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from regard.train.device import synchronize
from regard.train.engine import Engine, own_targets
from regard.train.evaluate import evaluate
from regard.train.experiment import Experiment

#: Batches, and targets, that are evaluated in any case.
FEWEST, FEWEST_TARGETS = 8, 1024
#: A token costs about so many times as much in training as in an evaluation: forward, and backward twice that.
TRAINING_COST = 3
TIMED = 4  # batches


class EvaluationTime(NamedTuple):
    """The batches of the whole validation part on this rank, and the seconds that each of them takes."""

    batches: float
    seconds: float


def time_evaluation(engine: Engine) -> EvaluationTime:
    """Time a few validation batches. The first one is slower, so it counts only if it is the only one."""
    timed = []
    for batch in islice(engine.validation_batches(_whole(engine)), TIMED):
        started = time.perf_counter()
        evaluate(engine, [batch])
        synchronize(engine.device)
        timed.append(time.perf_counter() - started)
    return EvaluationTime(whole_batches(engine), statistics.median(timed[1:] or timed) if timed else 0.0)


def whole_batches(engine: Engine) -> float:
    """About how many batches the whole validation part has on this rank, by its first one."""
    batches, targets = engine.validation_batches(_whole(engine)), engine.data.validation_count
    if targets is None:
        return sum(1 for _ in batches)
    own = [max(own_targets(engine.task, [batch]).values()) for batch in islice(batches, 1)]
    return targets / engine.world.parts / max(1.0, *own) if own else 0.0


def _whole(engine: Engine) -> Experiment:
    return replace(engine.experiment, train=replace(engine.experiment.train, evaluate_tokens=None))


def stride_within(tokens: float, targets: int, batches: float) -> int:
    """The least power of two of which every so-many-th batch has at most ``tokens`` targets, unless that is too few.

    ``targets`` and ``batches``: of the whole validation part.
    """
    least = max(FEWEST, FEWEST_TARGETS * batches / max(targets, 1))
    stride = 1
    while targets / stride > tokens and batches / (2 * stride) >= least:
        stride *= 2
    return stride


def evaluated_batches(experiment: Experiment, whole: float, targets: int | None, trained: float) -> int:
    """The number of batches of an evaluation, of the ``whole`` ones; the first comes after ``trained`` tokens."""
    train = experiment.train
    stride = 1
    if targets is not None and train.evaluate_tokens is not None:
        stride = max(1, round(targets / train.evaluate_tokens))
    elif targets is not None and train.evaluate_share is not None:
        stride = stride_within(TRAINING_COST * train.evaluate_share * trained, targets, whole)
    return math.ceil(whole / stride)


def undecided(engine: Engine) -> bool:
    """Whether the first evaluation has to say how much is evaluated."""
    train = engine.experiment.train
    open_ = train.evaluate_tokens is None and train.evaluate_share is not None
    return open_ and engine.data.validation_count is not None


def decided(engine: Engine, batches: float, most: float = math.inf) -> Experiment:
    """The experiment with its ``evaluate_tokens``, the same on every rank; ``most``: batches of an evaluation."""
    experiment, targets = engine.experiment, engine.data.validation_count or 0
    tokens = TRAINING_COST * (experiment.train.evaluate_share or 0.0) * engine.progress.tokens
    stride = stride_within(tokens, targets, batches)
    if batches / stride > most:  # the clock decides: no power of two, so that no time is left over
        stride = max(1, math.floor(min(batches / max(most, 1.0), batches / FEWEST)))
    stride = engine.world.broadcast(stride)
    return replace(experiment, train=replace(experiment.train, evaluate_tokens=max(1, round(targets / stride))))
