"""Write the report of a run: at the end of training, or by `regard report`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.config.parts import with_options
from regard.report.facts import Facts, gather
from regard.report.inspection import attempt, inspect, model_size
from regard.report.page import page
from regard.runs import Run
from regard.runs.disk import replace_file, write_synced, writing
from regard.train import Experiment

FILE = "report.html"


def study(run: Run, recipe: tuple[str, Experiment] | None = None) -> Facts:
    """The facts of a run. ``recipe`` is the nearest one, for the commands to try next."""
    notes: list[str] = []
    size = attempt(notes, "Parameters and FLOPs are left out", lambda: model_size(run))
    return gather(run, recipe, size, inspect(run, notes), notes)


def write(run: Run, facts: Facts, out: Path | None = None) -> Path:
    """Write the report atomically into the run folder, or to the file ``out``; return its path."""
    html = page(facts).encode()
    if out is not None:
        with writing(str(out)):
            replace_file(out, html)
        return out
    run.add(FILE, lambda path: write_synced(path, html))
    return run.file(FILE)


@contextmanager
def reported(run: Run, recipe: tuple[str, Experiment] | None = None) -> Iterator[None]:
    """Write the report when the training inside this context ends, also after a signal or an error.

    A report that fails prints a line to stderr and does not fail the training.
    """
    before = run.metrics()
    try:
        yield
    except Exception:
        if run.metrics() != before:  # else training never began: the run folder stays as it was
            _try_to_write(run, recipe)
        raise
    _try_to_write(run, recipe)


def _try_to_write(run: Run, recipe: tuple[str, Experiment] | None) -> None:
    try:
        write(run, study(run, recipe))
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}"
        print(
            f"the report could not be written ({why}); try: regard report {run.path}{with_options()}", file=sys.stderr
        )
