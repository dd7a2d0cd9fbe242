"""`regard scale`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CommandOptions, split_names
from regard.commands.train import read_experiment
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.scale import Ladder, ScaleResult

FACTORS = {"k": 1e3, "M": 1e6}


@dataclass(frozen=True)
class ScaleOptions(CommandOptions):
    """Options of `regard scale`."""

    recipe: str = argument("shakespeare-small", "a recipe's name or a TOML file")
    sizes: int = option(4, "number of sizes that the law is fitted to")
    ratio: float = option(2.0, "each size has so many times the parameters of the one before")
    largest: int | None = option(None, "parameters of the largest of them, without embeddings; default: the recipe's")
    tokens: str | None = option(
        None, "lengths of training, such as 250k,500k,1M; default: the recipe's own, and 1/2, 1/4, 1/8 of it"
    )
    seeds: int = option(1, "trainings of each size and length, with different seeds")
    larger: float = option(4.0, "the model that is predicted has so many times the parameters of the largest")
    test: bool = option(True, "only predict: do not train the larger model to compare its loss with the prediction")
    workers: int | None = option(None, "trainings side by side; default: one per core, or one per GPU")
    out: Path = option(Path("scale"), "the folder for trainings and results; the same command continues in it")


def scale(options: ScaleOptions, keys: Mapping[str, object]) -> int:
    """Fit a scaling law to small models, predict the loss of a larger one, then train that and compare.

    The law is loss = E + A/N^a + B/D^b (Hoffmann et al. 2022): N parameters without embeddings, D tokens of training.
    The prediction is written to `prediction.json` before the larger model is trained. docs/scaling.md says more.
    Every key of the experiment is an option, as for `regard train`.
    """
    options.check_at_least_one("workers")
    experiment = read_experiment(options.recipe, keys)
    from regard.scale import ladder, write_page
    from regard.scale import scale as run
    from regard.trials import cores, default_workers

    workers = options.workers or default_workers([experiment])
    made = ladder(
        experiment,
        options.sizes,
        options.ratio,
        options.largest,
        parse_tokens(options.tokens),
        options.seeds,
        options.larger,
        threads=max(1, cores() // workers),
    )
    for line in [*made.warnings(), announcement(options, made, workers)]:
        say(line)
    result = run(made, options.out, experiment.seed, workers, options.test, say)
    page = write_page(options.recipe, made, result, options.out)
    text = "\n".join([*table(made, result), f"{page} shows it"])
    options.show({"recipe": options.recipe, "page": str(page), **result.record()}, text)
    return 0


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def parse_tokens(text: str | None) -> list[int] | None:
    """The lengths in a text such as "250k,1M".

    >>> parse_tokens("250k, 1M")
    [250000, 1000000]
    """
    if (names := split_names(text)) is None:
        return None
    try:
        return [round(float(one.rstrip("kM")) * FACTORS.get(one[-1], 1)) for one in names]
    except (ValueError, OverflowError):
        raise UserError(f"--tokens is {text!r}, not numbers of tokens such as 250k,500k,1M") from None


def announcement(options: ScaleOptions, ladder: Ladder, workers: int) -> str:
    """What will be trained, and how long it takes about."""
    from regard.pages.numbers import duration
    from regard.trials.pool import finished

    every = ladder.rungs, ladder.larger if options.test else []
    left = [[one for one in rungs if finished(options.out, one.trial) is None] for rungs in every]
    times = [ladder.estimate(rungs, min(workers, len(rungs))) for rungs in left]
    return (
        f"{sum(map(len, left))} of {sum(map(len, every))} trainings are to be done, {workers} at a time: about "
        f"{duration(sum(times))}, of which {duration(times[1])} for the larger model; results will be in {options.out}"
    )


def table(ladder: Ladder, result: ScaleResult) -> Iterator[str]:
    """The result for a terminal."""
    from regard.scale.page import BUDGET_COLUMNS, COLUMNS, in_columns, optimal_rows, rows, words

    yield from in_columns(COLUMNS, rows(result))
    yield "compute-optimal sizes of this law:"
    yield from in_columns(BUDGET_COLUMNS, optimal_rows(result))
    yield from words(ladder, result)
