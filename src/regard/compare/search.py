"""The learning rate of each contender: the same number of short trials for each, around the recipe's own rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.compare.costs import Say
from regard.compare.schedule import ComparisonSchedule, ScheduledContender
from regard.trials import Trial, train_trials

STEP = 3.0  # between neighbors of the first trials


class TriedRate(NamedTuple):
    """A trial of a learning rate."""

    factor: float  # of the recipe's own rate
    rate: float
    loss: float  # infinite if it diverged


def best(tried: Sequence[TriedRate]) -> TriedRate:
    """The trial with the lowest loss; the lower rate if losses are equal."""
    return min(tried, key=lambda one: (one.loss, one.factor))


def at_edge(tried: Sequence[TriedRate]) -> bool:
    """Whether the best rate is the lowest or the highest of several, so that a better one may lie beyond."""
    factors = [one.factor for one in tried]
    return len(tried) > 1 and best(tried).factor in (min(factors), max(factors))


def next_factors(tried: Mapping[float, float], left: int) -> list[float]:
    """The factors to try next, when ``left`` trials are left. ``tried``: losses by factor.

    The first three are the recipe's own rate, a lower and a higher one. Each further one goes beyond the edge if the
    best one is there, and else between the best one and its better neighbor.

    >>> next_factors({}, 2)
    [0.3333333333333333, 1.0]
    >>> next_factors({0.3: 2.0, 1.0: 1.9, 3.0: 1.8}, 1)
    [9.0]
    """
    if left < 1:
        return []
    if not tried:
        grid = [1.0, 1 / STEP, STEP][:left]
        return sorted(grid)
    ordered = sorted(tried)
    lowest = min(ordered, key=lambda one: (tried[one], one))
    place = ordered.index(lowest)
    if place == len(ordered) - 1 and len(ordered) > 1:
        found = lowest * STEP
    elif place == 0:
        found = lowest / STEP
    else:
        neighbor = min(ordered[place - 1], ordered[place + 1], key=lambda one: tried[one])
        found = math.sqrt(lowest * neighbor)
    return [found]


def search(schedule: ComparisonSchedule, folder: Path, say: Say) -> dict[str, list[TriedRate]]:
    """The trials of every contender, by its name. With ``rates`` = 1 nothing is tried: the recipe's rate is used."""
    found: dict[str, dict[float, float]] = {one.name: {} for one in schedule.contenders}
    seed = schedule.seeds.start - 1  # one that no training of the comparison has
    while schedule.settings.rates > 1:
        trials: dict[Trial, tuple[str, float]] = {}
        for one in schedule.contenders:
            tried = found[one.name]
            for factor in next_factors(tried, schedule.settings.rates - len(tried)):
                experiment = one.training(one.trial_steps, seed, factor, evaluations=1)
                trials[Trial(f"{one.name} rate {rate_of(one, factor):g}", experiment)] = one.name, factor
        if not trials:
            break
        for trial, outcome in train_trials(list(trials), folder, schedule.workers, say, schedule.threads):
            name, factor = trials[trial]
            found[name][factor] = outcome.loss if math.isfinite(outcome.loss) else math.inf
    return {
        one.name: [TriedRate(factor, rate_of(one, factor), loss) for factor, loss in sorted(found[one.name].items())]
        or [TriedRate(1.0, rate_of(one, 1.0), math.inf)]
        for one in schedule.contenders
    }


def rate_of(contender: ScheduledContender, factor: float) -> float:
    """The peak learning rate at a factor."""
    return float(f"{contender.experiment.train.optimizer.lr * factor:.4g}")
