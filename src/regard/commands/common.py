"""What the commands share: where runs lie, and which process speaks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run

RUNS = Path("runs")
RunName = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]", help_behavior_hint="")]


def rank() -> int:
    """Which of several processes this is, as torchrun and its like say; 0 for one alone."""
    text = os.environ.get("RANK", "0")
    if not text.isdigit():
        raise UserError(f"the environment variable RANK is {text!r}, not a number; start with torchrun or unset it")
    return int(text)


def is_run(text: str, runs: Path) -> bool:
    """Whether a text is the folder of a run, or the name of one in `runs`."""
    return bool(text) and any(os.path.isfile(folder / "config.toml") for folder in (runs / text, Path(text)))


def open_run(run: str | None, runs: Path) -> Run:
    """The run of that folder or name; the newest if none is named."""
    from regard.runs import Run

    if run is None:
        if runs.exists() and not runs.is_dir():
            raise UserError(f"{runs} is a file, not a folder of runs; give another with --runs FOLDER")
        found = sorted(runs.glob("[!.]*/config.toml"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise UserError(f"there is no run in {runs}; train one first: regard train")
        return Run.open(found[-1].parent)
    # A path that is there, or else a name among the runs, which is also where a misspelt one is looked for.
    named = (runs / run).is_dir() or (not Path(run).exists() and Path(run).name == run)
    return Run.open(runs / run if named and not Path(run).is_dir() else Path(run))
