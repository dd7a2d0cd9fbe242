"""A run that is written at once: imported from elsewhere, or made from another one."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from regard.runs.disk import write_synced
from regard.runs.environment import environment
from regard.runs.folder import Run
from regard.runs.tensors import Tensors


def make_run(
    runs: Path,
    name: str | None,
    config: str,
    model: Tensors,
    files: Mapping[str, bytes],
    *,
    prefix: str,
    step: int = 0,
    data: object = None,
) -> Run:
    """A new run with one checkpoint, that of ``step``; ``data`` is the SHA-256 of the training data."""
    run = Run.create(runs, name, config, environment(), prefix=prefix)
    try:
        with run.lock():
            for file, content in files.items():
                run.add(file, partial(write_synced, data=content))
            state = {"position": 0, "tokens": 0, "seconds": 0.0, "scaler": {}, "data": data}
            run.save(step, model, {}, state)
    except BaseException:
        run.discard()
        raise
    return run
