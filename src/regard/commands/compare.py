"""`regard compare`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, CommandOptions
from regard.commands.train import read_experiment
from regard.compare.sets import DEFAULT, SETS, ComparisonSet
from regard.config import argument, option
from regard.pages.numbers import plural

if TYPE_CHECKING:
    import torch

    from regard.compare.contender import Contender
    from regard.compare.schedule import ComparisonSchedule, ComparisonSettings

LONGEST = 60  # letters of a folder's name


@dataclass(frozen=True)
class CompareOptions(CommandOptions):
    """Options of `regard compare`."""

    contenders: tuple[str, ...] = argument(
        (), 'recipes, TOML files, texts such as "wide: shakespeare --model.width 256", or one of the sets'
    )
    budget: tuple[str, ...] = option(
        (),
        "what is equal: params=1M and one or more of seconds=120, flops=1e14, tokens=5M, steps=500, epochs=1",
        metavar="NAME=NUMBER",
    )
    seeds: int | None = option(None, "trainings of each contender; default: 3")
    rates: int | None = option(None, "learning rates that are tried for each contender (1: the recipe's); default: 3")
    share: float | None = option(None, "length of these trials, as a share of the first length; default: 0.25")
    scale: float = option(1.0, "length of all trainings: 0.05 trains a twentieth as long, for a first impression")
    workers: int | None = option(None, "trainings at a time; default: one per core or GPU")
    name: str | None = option(None, "the folder's name; default: from the contenders")
    out: Path = option(RUNS / "comparisons", "the folder for comparisons")
    plan: bool = option(False, "state the sizes, the steps and the total time, write nothing, and end")


def compare(options: CompareOptions, keys: Mapping[str, object]) -> int:
    """Compare architectures at equal parameters, FLOPs, tokens or time, trained alike.

    All contenders get the data, the task, the seeds and the training of the first one; sizes are solved for with
    params=, and the learning rate is searched with the same number of trials for each. Keys after the contenders are
    for all of them; a contender in quotes may have its own. The same command continues what was interrupted.

      regard compare shakespeare shakespeare-lstm shakespeare-conv --budget params=1M seconds=120
      regard compare "wide: shakespeare --model.width 256" "deep: shakespeare --model.layers 8" --budget flops=1e14
      regard compare long-sequences --plan         a set: nine architectures on long texts; here only what it takes
    """
    from regard.compare.page import write
    from regard.compare.result import compare as run
    from regard.compare.schedule import schedule
    from regard.compare.words import columns_text, text
    from regard.models.device import find_device

    words = options.contenders or (DEFAULT,)
    chosen = SETS[words[0]] if len(words) == 1 and words[0] in SETS else ComparisonSet("", words, ())
    contenders, own = read_contenders(chosen, keys)
    name = options.name or (words[0] if chosen.about else slug([one.name for one in contenders]))
    folder = options.out / name
    made = schedule(contenders, own, settings_of(options, chosen), folder, tell, keep=not options.plan)
    arithmetic = "\n".join([columns_text(*made.sizes()), "", *made.arithmetic()])
    if options.plan:
        steps = {one.name: one.steps for one in made.contenders}
        options.show({"seconds": made.total, "steps": steps, "costs": costs_of(made)}, arithmetic)
        return 0
    tell(f"{arithmetic}\nresults: {folder}; the same command continues what is interrupted")
    first = made.contenders[0].experiment
    device = machine(find_device(first.train.device), made.workers, made.threads)
    setting = f"{first.data.kind} data, batch {first.data.batch}, context {first.model.context}, "
    result = run(made, name, f"{setting}{made.settings.seeds} seeds from {first.seed}, {device}", tell)
    path = write(result, folder, command_line(words, options, keys))
    options.show({**result.record(), "page": str(path)}, f"{text(result)}\n{path} shows it")
    return 0


def settings_of(options: CompareOptions, chosen: ComparisonSet) -> ComparisonSettings:
    """The options, and where they are not given, the values of the set."""
    from regard.compare.budget import Budget
    from regard.compare.schedule import ComparisonSettings

    return ComparisonSettings(
        budget=Budget.parse(options.budget or chosen.budget),
        seeds=chosen.seeds if options.seeds is None else options.seeds,
        rates=chosen.rates if options.rates is None else options.rates,
        share=chosen.share if options.share is None else options.share,
        workers=options.workers,
        scale=options.scale,
    )


def read_contenders(
    chosen: ComparisonSet, keys: Mapping[str, object]
) -> tuple[list[Contender], list[Mapping[str, object]]]:
    """The contenders with the keys of the set, of the command line and their own; and their own keys."""
    from regard.compare.contender import Contender, ContenderText

    parsed = [ContenderText.parse(text) for text in chosen.contenders]
    common = {**chosen.keys, **keys}
    found = [Contender(one.name, read_experiment(one.recipe, {**common, **one.keys})) for one in parsed]
    return found, [one.keys for one in parsed]


def slug(names: Sequence[str]) -> str:
    """A folder's name from those of contenders; one that is too long ends with a hash."""
    whole = re.sub(r"[^A-Za-z0-9.]+", "-", "-against-".join(names)).strip("-.")
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}-{sha256(whole.encode()).hexdigest()[:6]}"


def machine(device: torch.device, workers: int, threads: int) -> str:
    """Where it ran."""
    import torch

    on_gpu = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_gpu else f"CPU with {plural(threads, 'thread')}"
    return f"{plural(workers, 'worker')} on {where} each, torch {torch.__version__.split('+')[0]}"


def costs_of(made: ComparisonSchedule) -> dict[str, object]:
    """What a step of each contender takes."""
    return {one.name: {**one.costs._asdict(), "step": one.costs.step._asdict()} for one in made.contenders}


def command_line(words: Sequence[str], options: CompareOptions, keys: Mapping[str, object]) -> str:
    """The command with the options that decide the result."""
    parts = ["regard", "compare", *map(shlex.quote, words)]
    if options.budget:
        parts += ["--budget", *options.budget]
    for name in ("seeds", "rates", "share", "scale"):
        if getattr(options, name) != getattr(CompareOptions(), name):
            parts += [f"--{name}", f"{getattr(options, name):g}"]
    return " ".join([*parts, *(f"--{key} {shlex.quote(str(value))}" for key, value in keys.items())])


def tell(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)
