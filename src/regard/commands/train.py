"""`regard train`."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.commands.common import RUNS, rank
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run
    from regard.train import Experiment


def train(
    recipe: Annotated[str, tyro.conf.Positional] = "shakespeare",
    /,
    *,
    name: str | None = None,
    runs: Path = RUNS,
    seed: int | None = None,
    json: bool = False,
    overrides: Annotated[tuple[str, ...], tyro.conf.Suppress] = (),
) -> int:
    """Train a recipe, or the experiment in a TOML file, into a new run folder.

    Every key of the experiment is an option: --train.steps 500, --model.width 256, --data.path FILE,
    --model.position rotary --model.position.base 5e5. `regard recipes NAME` lists them with their values.

    Args:
        recipe: A recipe's name (`regard recipes`) or a TOML file.
        name: The run's name; by default the recipe's with a number.
        runs: The folder that holds runs.
        seed: Decides weights, batches and dropout.
        json: Print the outcome as JSON.
    """
    from regard.config import override, read, to_toml
    from regard.recipes import get
    from regard.runs import Run, environment
    from regard.train import Experiment

    path = Path(recipe)
    experiment = read(path, Experiment) if path.suffix == ".toml" else get(recipe)
    given = [*overrides, *([] if seed is None else ["--seed", str(seed)])]
    experiment = override(experiment, given).checked()
    prefix = path.stem if path.suffix == ".toml" else recipe
    # Of several processes one makes the folder, and the others join it.
    text = to_toml(experiment)
    run = joined(runs, name) if rank() else Run.create(runs, name, text, environment(), prefix=prefix)
    try:
        return sit(experiment, run, json=json, resume=False)
    except UserError:
        run.discard()
        raise


def sit(experiment: Experiment, run: Run, *, json: bool, resume: bool) -> int:
    """Train to the end or to a signal, and say how it went."""
    from regard.train import LiveLine, train

    budget = experiment.train.seconds
    trial = "" if budget is None else f", and a few steps to see how many fit into {budget:g} seconds"
    print(f"{run.path}: preparing text and model{trial}", file=sys.stderr, flush=True)
    result = train(experiment, run, observers=[LiveLine()], resume=resume)
    if rank():
        pass  # of several processes the first one speaks
    elif json:
        print(jsonlib.dumps({**result._asdict(), "path": str(result.path)}))
    elif not result.interrupted:
        loss = "" if result.validation_loss is None else f", validation loss {result.validation_loss:.4f}"
        print(f"{result.path}: {result.step:,} steps{loss}\nwrite with it: regard generate {result.path}")
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
