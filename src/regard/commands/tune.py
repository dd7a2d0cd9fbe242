"""`regard tune`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CommandOptions
from regard.commands.train import read_experiment
from regard.config import argument, option

if TYPE_CHECKING:
    from regard.data import Batch, Data
    from regard.train import Experiment


@dataclass(frozen=True)
class TuneOptions(CommandOptions):
    """Options of `regard tune`."""

    recipe: str = argument("shakespeare-small", "a recipe's name or a TOML file")
    trials: int = option(10, "number of trials beside the default, over all stages")
    seeds: int = option(3, "seeds with which the default and the best are compared at the end")
    stages: str = option(
        "learning rate,warm-up,batch,dropout,architecture",
        "what is searched, in this order; leave out what should stay",
    )
    out: Path = option(Path("tune"), "the folder for trials and results; the same command continues in it")


def tune(options: TuneOptions, keys: Mapping[str, object]) -> int:
    """Search hyperparameters stage by stage: learning rate, warm-up, batch, dropout, then layers, width and heads.

    Each trial trains with the FLOPs of the recipe's own training, and trial 0 is the recipe as it is. At the end the
    best configuration and the default are trained with the same fresh seeds, and the result says whether the best one
    is better. It is written to `best.toml`, which `regard train FILE` takes. docs/hyperparameters.md says more.
    Every key of the experiment is an option, as for `regard train`. It needs Optuna: pip install 'regard[tune]'
    """
    options.check_at_least_one("trials", "seeds")
    experiment = read_experiment(options.recipe, keys)
    from regard.tune import search, write_page
    from regard.tune.page import BEST, words

    search.require_optuna()
    data = experiment.data.build(experiment.model.context)
    flops, line = budget(options, experiment, data)
    say(line)
    stages = [name.strip() for name in options.stages.split(",") if name.strip()]
    result = search.tune(experiment, data, flops, options.out, options.trials, options.seeds, stages, say)
    page = write_page(options.recipe, result, options.out)
    text = [*words(result), f"{page} shows it; regard train {options.out / BEST} trains the best configuration"]
    options.show({"recipe": options.recipe, "page": str(page), **result.record()}, "\n".join(text))
    return 0


def budget(options: TuneOptions, experiment: Experiment, data: Data[Batch]) -> tuple[float, str]:
    """The FLOPs of the experiment's own training, and how long the search takes with them, in words."""
    from regard.models.device import find_device
    from regard.pages.numbers import duration, unit
    from regard.parallel.world import World
    from regard.plan.speed import measure
    from regard.train.budget import budget_in_steps

    own = budget_in_steps(experiment, data, World(device=find_device(experiment.train.device)), time.perf_counter())
    sized = replace(own, model=own.model_for(data).with_dropout(0.0), train=replace(own.train, dropout=None))
    measured = measure(sized, own.batch(data, 0), find_device(own.train.device))
    steps = own.train.steps or 1
    flops = measured.step.flops * steps
    taken = duration((options.trials + 1 + 2 * options.seeds) * steps * measured.seconds)
    line = (
        f"{options.trials} trials beside the default, then {2 * options.seeds} trainings to compare the best with it, "
        f"each of {unit(flops, 'FLOP')} ({steps:,} steps of the default): about {taken} without evaluations, less with "
        f"what ends early; results will be in {options.out}"
    )
    return flops, line


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
