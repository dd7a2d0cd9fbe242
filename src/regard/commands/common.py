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
RunName = Annotated[str | None, tyro.conf.Positional]


def rank() -> int:
    """Which of several processes this is, as torchrun and its like say; 0 for one alone."""
    return int(os.environ.get("RANK", 0))


def open_run(run: str | None, runs: Path) -> Run:
    """The run of that folder or name; the newest if none is named."""
    from regard.runs import Run

    if run is None:
        found = sorted(runs.glob("[!.]*/config.toml"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise UserError(f"there is no run in {runs}; train one first: regard train")
        return Run.open(found[-1].parent)
    return Run.open(Path(run) if Path(run).is_dir() or not (runs / run).is_dir() else runs / run)
