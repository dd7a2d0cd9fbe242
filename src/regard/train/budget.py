"""Budgets: tokens and seconds become steps before a run starts, and are written down, so that a run can be repeated."""

import statistics
import time
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from regard.train.device import synchronize
from regard.train.engine import Engine
from regard.train.evaluate import evaluate
from regard.train.experiment import Experiment
from regard.train.guard import guarded, make_engine
from regard.train.shard import World

WARM_STEPS, TIMED_STEPS = 3, 12
#: Calibration goes on for a share of the budget, since a few steps may catch a shared machine at an odd moment; it
#: ends even before the steps above are done when it has taken the longest share.
SHARE, LONGEST_SHARE = 0.04, 0.1


class Pace(NamedTuple):
    """Measured seconds."""

    step: float
    evaluation: float
    start: float  # what the first step takes beyond the others: compiling, above all


def settle(experiment: Experiment, data: Any, world: World, began: float) -> Experiment:
    """The experiment with its budget in steps; what they were worked out from stays as a note.

    Seconds count from `began`, a `time.perf_counter()`, so that loading and calibration are part of the budget.
    """
    train = experiment.train
    if train.seconds is not None:
        longest = train.seconds * LONGEST_SHARE
        # An engine of its own, thrown away: weights depend on nothing but the seed, so the real one starts afresh.
        engine = make_engine(experiment, data, world)
        pace = guarded(engine, lambda: measure(engine, longest))
        left = train.seconds - (time.perf_counter() - began) - pace.start
        steps = steps_within(left, pace, train.evaluate_every)
        note = f"{train.seconds:g} seconds"
    elif train.tokens is not None:
        steps = max(1, round(train.tokens / max(1.0, tokens_per_step(experiment, data, world))))
        note = f"{train.tokens} tokens"
    else:
        return experiment
    steps = world.first(steps)  # every rank must take the same number; rank 0 decides
    return replace(experiment, train=replace(train, steps=steps, seconds=None, tokens=None, budget=note))


def steps_within(seconds: float, pace: Pace, evaluate_every: int | None) -> int:
    """How many steps fit into `seconds` together with their evaluations, the last of which is at the end."""
    per_step = pace.step + (pace.evaluation / evaluate_every if evaluate_every else 0.0)
    return max(1, int((seconds - pace.evaluation) / per_step))


def measure(engine: Engine, longest: float) -> Pace:
    """Real steps and a part of a real evaluation of a throw-away engine, timed for about `longest` seconds."""
    began = time.perf_counter()
    times: list[float] = []
    enough = longest * SHARE / LONGEST_SHARE
    # The first step, in which a model is compiled, is not part of what is enough.
    while len(times) < WARM_STEPS + TIMED_STEPS or not engine.world.any(sum(times[1:]) > enough):
        started = time.perf_counter()
        engine.update()
        synchronize(engine.device)
        times.append(time.perf_counter() - started)
        # Together: a rank that stopped alone would leave the others waiting.
        if len(times) > 1 and engine.world.any(time.perf_counter() - began > longest):
            break
    warm = min(WARM_STEPS, len(times) - 1)
    step = statistics.fmean(times[warm:])  # not the median: what disturbs a few steps now will disturb a few later
    return Pace(step, _time_evaluation(engine), max(0.0, times[0] - step))


def _time_evaluation(engine: Engine) -> float:
    world = engine.world
    batches = engine.data.validation_batches(engine.experiment.data.batch, rank=world.rank, world=world.size)
    timed = []
    for batch in islice(batches, 4):
        started = time.perf_counter()
        evaluate(engine, [batch])
        synchronize(engine.device)
        timed.append(time.perf_counter() - started)
    if not timed:
        return 0.0
    count = len(timed) + sum(1 for _ in batches)
    return count * statistics.median(timed[1:] or timed)


def tokens_per_step(experiment: Experiment, data: Any, world: World) -> float:
    """How many targets the first update counts, over all ranks."""
    task = experiment.task.build()
    batches = [
        data.batch(number, seed=experiment.seed, rank=world.rank, world=world.size, size=experiment.data.batch)
        for number in range(experiment.train.accumulate)
    ]
    return world.sums([float(sum(int(next(iter(task.counts(batch).values()))) for batch in batches))])[0]
