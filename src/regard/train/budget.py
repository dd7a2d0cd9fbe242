"""Budgets: tokens, epochs and seconds become a number of steps before a run starts, which its config records.

Of seconds, this number is a first plan, which ``budget_clock`` changes during the run.
"""

import math
import statistics
import time
from dataclasses import replace
from typing import NamedTuple

from regard.data import Batch, Data
from regard.data.origins.progress import say
from regard.errors import UserError
from regard.parallel.world import World
from regard.train.device import synchronize
from regard.train.engine import Engine, targets_per_term
from regard.train.evaluation_size import evaluated_batches, time_evaluation
from regard.train.experiment import Experiment
from regard.train.guard import guarded, make_engine

WARM_STEPS, TIMED_STEPS = 2, 4
#: Calibration takes this share of the budget; after the longest share it ends even if the steps above are not done.
SHARE, LONGEST_SHARE = 0.01, 0.05
#: Of the first plan, this share is for the steps before the first evaluation.
TRAINING_SHARE = 0.5
#: On a slow machine the run may end late, but training has this share of the budget, however long preparation takes.
LEAST_SHARE = 0.1


class StepTimes(NamedTuple):
    """Measured seconds."""

    step: float
    evaluation: float
    start: float  # what the first step takes beyond the others, mainly compilation


def budget_in_steps(experiment: Experiment, data: Data[Batch], world: World, began: float) -> Experiment:
    """The experiment with its budget in steps; ``budget`` notes what they were computed from.

    Seconds count from ``began``, a ``time.perf_counter()``, so loading and calibration are part of the budget. They
    stay in the config, with the first plan, until the run has ended (``settled``).
    """
    train = experiment.train
    if train.seconds is not None:
        longest = train.seconds * LONGEST_SHARE
        # A separate engine, discarded afterwards: the initial weights depend on the seed alone.
        engine = make_engine(experiment, data, world)
        times = guarded(lambda: measure(engine, longest), engine)
        prepared = time.perf_counter() - began + times.start
        left, least = train.seconds - prepared, train.seconds * LEAST_SHARE
        steps = steps_within(max(left, least), times, train.evaluate_every)
        if left < max(least, steps * times.step + times.evaluation):
            say(too_short(train.seconds, prepared, times.evaluation, steps))
        note = f"{train.seconds:g} seconds"
    elif train.tokens is not None:
        steps = max(1, round(train.tokens / max(1.0, tokens_per_step(experiment, data, world))))
        note = f"{train.tokens} tokens"
    elif train.epochs is not None:
        lanes = world.lanes(train.lanes)
        epoch = data.epoch(experiment.data.batch, train.accumulate * len(lanes) * world.parts)
        if epoch == math.inf:
            raise UserError(f"--train.epochs: the length of {data.name} is unknown; give --train.steps instead")
        steps = max(1, round(train.epochs * epoch))
        note = f"{train.epochs:g} epochs"
    else:
        return experiment
    steps = world.broadcast(steps)  # every rank must take the same number
    plans = () if train.seconds is None else ((0, steps),)
    return replace(experiment, train=replace(train, steps=steps, plans=plans, tokens=None, epochs=None, budget=note))


def too_short(seconds: float, prepared: float, evaluation: float, steps: int) -> str:
    """That a budget is too short, and what would help: what takes the longest decides."""
    taken = f"preparation takes {prepared:.0f} s and one evaluation about {evaluation:.0f} s"
    late = f"so the run takes longer than {seconds:g} s ({steps} step{'s' * (steps != 1)})"
    enough = 10 * math.ceil((prepared + evaluation) / 5)  # as long again for the steps
    shorter = ", or a smaller --data.validation for shorter evaluations" if evaluation > prepared else ""
    return f"{taken}, {late}; give more time, such as --train.seconds {enough}{shorter}"


def settled(experiment: Experiment) -> Experiment:
    """The experiment with the number of steps that a budget in seconds came to; trained again, it is the same run."""
    return replace(experiment, train=replace(experiment.train, seconds=None))


def kept_until(experiment: Experiment, step: int) -> Experiment:
    """The experiment of a run that goes on from a checkpoint: plans made after its ``step`` are forgotten."""
    plans = tuple(plan for plan in experiment.train.plans if plan[0] <= step)
    steps = plans[-1][1] if plans else experiment.train.steps
    return replace(experiment, train=replace(experiment.train, plans=plans, steps=steps))


def steps_within(seconds: float, times: StepTimes, evaluate_every: int | None) -> int:
    """The number of steps that fit into ``seconds`` with their evaluations, the last of which is at the end.

    A long evaluation does not leave an untrained model: half of the time is for the steps before the first one.
    """
    per_step = times.step + (times.evaluation / evaluate_every if evaluate_every else 0.0)
    least = min(evaluate_every or math.inf, seconds * TRAINING_SHARE / times.step)
    return max(1, int(least), int((seconds - times.evaluation) / per_step))


def measure(engine: Engine, longest: float) -> StepTimes:
    """Time training steps and a part of an evaluation for about ``longest`` seconds. The engine is spent afterwards."""
    began = time.perf_counter()
    times: list[float] = []
    enough = longest * SHARE / LONGEST_SHARE
    # The first step, which may compile the model, does not count towards ``enough``.
    while len(times) < WARM_STEPS + TIMED_STEPS or not engine.world.any(sum(times[1:]) > enough):
        started = time.perf_counter()
        engine.update()
        synchronize(engine.device)
        times.append(time.perf_counter() - started)
        # All ranks decide together: if one stopped alone, the others would wait for it.
        if len(times) > 1 and engine.world.any(time.perf_counter() - began > longest):
            break
    warm = min(WARM_STEPS, len(times) - 1)
    step = statistics.fmean(times[warm:])  # not the median: a few slow steps now predict a few slow steps later
    train, evaluation = engine.experiment.train, time_evaluation(engine)
    before = min(train.evaluate_every or math.inf, (train.seconds or math.inf) / step)  # steps
    trained = before * engine.progress.tokens / engine.progress.step
    batches = evaluated_batches(engine.experiment, evaluation.batches, engine.data.validation_count, trained)
    return StepTimes(step, batches * evaluation.seconds, max(0.0, times[0] - step))


def tokens_per_step(experiment: Experiment, data: Data[Batch], world: World) -> float:
    """The number of targets in the first update, over all ranks."""
    lanes = world.lanes(experiment.train.lanes)
    count = len(lanes) * world.parts
    batches = [experiment.batch(data, number, lane, count) for number, lane in experiment.micro_batches(0, lanes)]
    return next(iter(targets_per_term(experiment.task.build(), batches, world).values()))
