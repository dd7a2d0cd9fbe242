"""Making the report of a run: at the end of training, or whenever asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.report.facts import Facts, gather
from regard.report.inside import attempt, inspect, measure
from regard.report.page import page
from regard.runs import Run
from regard.runs.disk import replace_file, write_synced, writing
from regard.train import Experiment

FILE = "report.html"


def study(run: Run, recipe: tuple[str, Experiment] | None = None) -> Facts:
    """All that can be found out about a run. `recipe` is the one it is nearest to, for commands to try next."""
    notes: list[str] = []
    size = attempt(notes, "Parameters and FLOPs are left out", lambda: measure(run.config))
    return gather(run, recipe, size, inspect(run, notes), notes)


def write(run: Run, facts: Facts, out: Path | None = None) -> Path:
    """Write the report into the run folder, whole or not at all, or to the file `out`; where it is."""
    html = page(facts).encode()
    if out is not None:
        with writing(str(out)):
            replace_file(out, html)
        return out
    run.add(FILE, lambda path: write_synced(path, html))
    return run.file(FILE)


@contextmanager
def reported(run: Run, recipe: tuple[str, Experiment] | None = None) -> Iterator[None]:
    """Around a training: when it ends, by itself, by a signal or by an error, the run gets its report.

    Training is what counts: a report that cannot be made is a line on the error output and nothing more.
    """
    before = run.metrics()
    try:
        yield
    except Exception:
        if run.metrics() != before:  # else it never began: a new run is not kept, an old one stays as it was
            _write_or_say(run, recipe)
        raise
    _write_or_say(run, recipe)


def _write_or_say(run: Run, recipe: tuple[str, Experiment] | None) -> None:
    try:
        write(run, study(run, recipe))
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}"
        print(f"the report could not be made ({why}); try: regard report {run.path}", file=sys.stderr)
