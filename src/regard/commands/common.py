"""Options and helpers that commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.config import argument, option
from regard.config.command_line import flag_name
from regard.errors import UserError
from regard.runs import Run
from regard.untrusted import printable

if TYPE_CHECKING:
    from regard.generate.load import LoadedModel
    from regard.models.base import Model

    M = TypeVar("M", bound=Model)

RUNS = Path("runs")


@dataclass(frozen=True)
class CommandOptions:
    """Options of every command."""

    json: bool = option(False, "print the result as JSON")
    with_: tuple[Path, ...] = option(
        (), "load parts from this Python file; may be repeated", metavar="FILE", repeated=1
    )

    def show(self, record: object, text: str) -> None:
        """Print a result: the record as JSON, or the text."""
        print(json.dumps(record) if self.json else printable(text))

    def check_at_least_one(self, *names: str) -> None:
        """Refuse a number below 1 in one of these options."""
        for name in names:
            if (value := vars(self)[name]) is not None and value < 1:
                raise UserError(f"--{flag_name(name)} must be at least 1, not {value}")


def in_columns(about: Mapping[str, str]) -> str:
    """A line for each name: the name, and the first line of the text about it, in columns."""
    longest = max(map(len, about), default=0)
    return "\n".join(f"{name:{longest}}  {''.join(text.splitlines()[:1])}" for name, text in about.items())


@dataclass(frozen=True)
class RunOptions(CommandOptions):
    """Options of a command about one run."""

    run: str | None = argument(None, "the run's folder or name; default: the newest run that was trained here")
    runs: Path = option(RUNS, "the folder that holds runs")

    def open(self) -> Run:
        """The run; if it is not named, a line says which one it is."""
        run = open_run(self.run, self.runs)
        if self.run is None:
            say_newest(run)
        return run


@dataclass(frozen=True)
class CheckpointOptions(RunOptions):
    """Options of a command that runs the model of a checkpoint."""

    step: int | None = option(None, "step of the checkpoint; default: the newest")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")

    def load(self, run: Run, kind: type[M], otherwise: str) -> tuple[M, LoadedModel]:
        """The model of the checkpoint, and all that was loaded; ``otherwise`` ends the error about another kind."""
        from regard.generate.load import load_model
        from regard.models.device import find_device

        loaded = load_model(run, find_device(self.device), self.step)
        if not isinstance(loaded.model, kind):
            raise UserError(f"{run.path} is a {type(loaded.model).__name__}{otherwise}")
        return loaded.model, loaded


@contextmanager
def naming_options() -> Iterator[None]:
    """Turn a ValueError about a parameter, such as "top_p must be ...", into one about the option of that name."""
    try:
        yield
    except ValueError as problem:
        raise UserError(f"--{str(problem).replace('_', '-')}") from problem


def rank() -> int:
    """The rank of this process, as torchrun sets it; 0 for a single process."""
    text = os.environ.get("RANK", "0")
    if not text.isdigit():
        raise UserError(f"the environment variable RANK is {text!r}, not a number; start with torchrun or unset it")
    return int(text)


def is_run(text: str, runs: Path) -> bool:
    """Whether a text is the folder of a run, or the name of one in `runs`."""
    return bool(text) and any(os.path.isfile(folder / "config.toml") for folder in (runs / text, Path(text)))


def say_newest(run: Run) -> None:
    """Say on standard error which run a command without the name of one has taken."""
    if not rank():
        print(printable(f"the newest run: {run.path}"), file=sys.stderr, flush=True)


def newest_run(runs: Path, preferred: Callable[[Run], bool]) -> Run:
    """The newest of the preferred runs; if there are none, the newest of all."""
    if runs.exists() and not runs.is_dir():
        raise UserError(f"{runs} is a file, not a folder of runs; give another with --runs FOLDER")
    configs = sorted(runs.glob("[!.]*/config.toml"), key=lambda path: path.lstat().st_mtime, reverse=True)
    if not configs:
        raise no_run(runs)
    newest = Run.open(configs[0].parent)
    if preferred(newest):
        return newest
    for config in configs[1:]:
        with suppress(UserError):  # an older run that is damaged is not in the way
            if preferred(run := Run.open(config.parent)):
                return run
    return newest


def no_run(runs: Path) -> UserError:
    """The error for a folder without runs, or that is not there."""
    return UserError(f"there is no run in {runs}; train one first (regard train), or give another with --runs FOLDER")


def trained(run: Run) -> bool:
    """Whether a run was trained here: `regard chat smollm2` leaves one of elsewhere, not meant by default."""
    return not run.imported


def open_run(run: str | None, runs: Path, preferred: Callable[[Run], bool] = trained) -> Run:
    """The run with that folder or name; if it is None, the newest one that is ``preferred``."""
    if run is None:
        return newest_run(runs, preferred)
    if os.path.isfile(Path(run) / "config.toml"):
        return Run.open(Path(run))
    # A name among the runs, also beside a folder of that name, such as the one that a model was imported from.
    if (runs / run).is_dir() and not Path(run).is_absolute():
        return Run.open(runs / run)
    if Path(run).exists() or Path(run).name != run:
        return Run.open(Path(run))
    if (model := published(run)) is not None:
        from regard.commands.import_ import imported_run

        return imported_run(model, run, runs)[0]
    return Run.open(runs / run)  # its error suggests a similar name


def published(name: str) -> Path | None:
    """The file of the published model with that name, fetched if it is not in the cache; None if there is none."""
    from regard.convert.published import MODELS

    return MODELS[name].fetch() if name in MODELS else None


def split_names(text: str | None) -> list[str] | None:
    """The names in a text such as "window, lsh"; None stays None."""
    return None if text is None else [name for name in text.replace(" ", "").split(",") if name]


def check_parent(path: Path | None) -> None:
    """Refuse an output file whose folder does not exist."""
    if path is not None and not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for --out {path}; make it first")
