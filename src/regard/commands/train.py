"""`regard train`."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.commands.common import RUNS, rank
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run
    from regard.train import Experiment

#: Each says how long to train; one given on the command line stands in for those of the recipe or file.
BUDGETS = ("steps", "tokens", "seconds")


def train(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")] = "shakespeare",
    /,
    *,
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
    runs: Path = RUNS,
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None,
    json: bool = False,
    watch: bool = False,
    doctor: bool = False,
    tensorboard: bool = False,
    overrides: Annotated[tuple[str, ...], tyro.conf.Suppress] = (),
) -> int:
    """Train a recipe, or the experiment in a TOML file, into a new run folder.

    Every key of the experiment is an option too; `regard recipes NAME` lists them all with their values.

      --train.steps 500          so many updates; or, instead,
      --train.seconds 90         for so long, preparation included; or
      --train.tokens 1000000     on so many tokens
      --data.path FILE           a text of your own
      --model.width 256          a size
      --model.position rotary --model.position.base 5e5    a choice, and a key of what was chosen

    Ctrl-C saves and stops; `regard resume` goes on.

    Args:
        recipe: A recipe's name (`regard recipes` lists them) or a TOML file.
        name: The run's name; by default the recipe's with a number.
        runs: The folder that holds runs.
        seed: Decides weights, batches and dropout; by default the recipe's.
        json: Print the outcome as JSON.
        watch: Draw the losses as a curve in the terminal while it trains.
        doctor: Say so when something goes wrong, with place, cause and cure; the run stays the same to the bit.
        tensorboard: Write TensorBoard events into the run folder too (needs `regard[tensorboard]`).
    """
    # What needs no torch comes first: the commonest mistakes are answered at once.
    from regard.runs import Run

    path = Path(recipe)
    prefix = path.stem if path.suffix == ".toml" else recipe
    if not rank():
        Run.check(runs, name)
    experiment = described(path if path.suffix == ".toml" else recipe, one_budget(overrides), seed)

    from regard.config import to_toml
    from regard.runs import environment
    from regard.train import check_start

    check_start(experiment)
    # Of several processes one makes the folder, and the others join it.
    text = to_toml(experiment)
    run = joined(runs, name) if rank() else Run.create(runs, name, text, environment(), prefix=prefix)
    try:
        return sit(experiment, run, json=json, resume=False, watch=watch, tensorboard=tensorboard, doctor=doctor)
    except BaseException:  # whatever it was, a run that has nothing to show is not left lying about
        if not rank():
            run.discard()
        raise


def described(recipe: Path | str, overrides: list[str], seed: int | None) -> Experiment:
    """The experiment of a recipe or a TOML file, with the command line's changes, checked."""
    from regard.config import load, override, read_toml
    from regard.recipes import get

    if isinstance(recipe, Path):
        table = read_toml(recipe)
        from regard.train import Experiment

        experiment = load(Experiment, table, recipe)
    else:
        experiment = get(recipe)
    given = [*overrides, *([] if seed is None else ["--seed", str(seed)])]
    return override(experiment, given).checked()


def one_budget(overrides: tuple[str, ...]) -> list[str]:
    """The overrides, in which a budget switches off the other kinds; two different ones contradict each other."""
    given = {
        name
        for name in BUDGETS
        for index, argument in enumerate(overrides)
        if argument.partition("=")[0] == f"--train.{name}"
        and "none" not in (argument.partition("=")[2], *overrides[index + 1 : index + 2])
    }
    if len(given) > 1:
        both = " and ".join(f"--train.{name}" for name in BUDGETS if name in given)
        raise UserError(f"{both} are given, but a run has one budget; leave out all but one")
    others = [name for name in ("tokens", "seconds") if given and name not in given]
    named = {argument.partition("=")[0] for argument in overrides}
    return [*overrides, *(f"--train.{name}=none" for name in others if f"--train.{name}" not in named)]


def key_like(name: str) -> str | None:
    """The key of an experiment that `name` was probably meant to be: `--train.steps` for "steps"."""
    from regard.config import keys
    from regard.config.place import nearest
    from regard.train import Experiment

    paths = {path.rpartition(".")[2]: path for path in reversed([key.path for key in keys(Experiment)])}
    meant = nearest(name.replace("-", "_"), paths)
    return None if meant is None else f"--{paths[meant]}"


def sit(
    experiment: Experiment,
    run: Run,
    *,
    json: bool,
    resume: bool,
    watch: bool = False,
    tensorboard: bool = False,
    doctor: bool = False,
) -> int:
    """Train to the end or to a signal, write the report, and say how it went."""
    from regard.commands.report import nearest_recipe
    from regard.report import Watch, reported
    from regard.train import Observer, ResumeNotice, train
    from regard.train.live import LiveCurve, LiveLine

    budget = experiment.train.seconds
    trial = "" if budget is None else f", and a few steps to see how many fit into {budget:g} seconds"
    print(f"{run.path}: preparing text and model{trial}", file=sys.stderr, flush=True)
    observers: list[Observer] = [ResumeNotice()] if resume and not rank() else []
    observers += [Watch(), LiveCurve() if watch else LiveLine()]
    if doctor:
        from regard.doctor import Doctor

        observers.append(Doctor())
    if tensorboard:
        from regard.train.tensorboard import TensorBoard

        observers.append(TensorBoard())
    with nullcontext() if rank() else reported(run, nearest_recipe(run)):
        result = train(experiment, run, observers=observers, resume=resume)
    if rank():
        pass  # of several processes the first one speaks
    elif json:
        print(jsonlib.dumps({**result._asdict(), "path": str(result.path)}))
    elif not result.interrupted:
        loss = "" if result.validation_loss is None else f", validation loss {result.validation_loss:.4f}"
        print(f"{result.path}: {result.step:,} steps{loss}")
        verb = "translate" if run.config["data"].get("kind") == "pairs" else "generate"
        word = "translate" if verb == "translate" else "write"
        print(f"read about it: {run.file('report.html')}\n{word} with it: regard {verb} {result.path}")
    return 130 if result.interrupted else 0


def joined(runs: Path, name: str | None, patience: float = 120) -> Run:
    """The run that the first of several processes makes."""
    from regard.runs import Run

    if name is None:
        raise UserError("several processes train one run: give it a --name, so that all of them find it")
    end = time.monotonic() + patience
    while not (runs / name / "config.toml").exists():
        if time.monotonic() > end:
            raise UserError(
                f"the first process made no run {runs / name}; all of them need the same folder and options"
            )
        time.sleep(0.1)
    return Run.open(runs / name)
