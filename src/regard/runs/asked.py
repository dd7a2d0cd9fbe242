"""What a run was asked for, by which a later start knows whether it may continue the run."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from regard.config.key_path import flag_text
from regard.errors import UserError
from regard.runs.folder import Run

ASKED = "asked"  # key in a run's environment.json: the config as it was asked for, which a start completes


def wait_for_run(path: Path, rank: int) -> Run:
    """Open a run folder, which a network file system may show to this rank later than to rank 0."""
    end = time.monotonic() + 120
    while rank and not (path / "config.toml").exists():
        if time.monotonic() > end:
            raise UserError(
                f"rank {rank} does not see the run {path} of rank 0; give all machines one shared --runs folder"
            )
        time.sleep(0.1)
    return Run.open(path)


def check_same(run: Run, asked: str) -> None:
    """Refuse to continue a run with another config than the one it was started with."""
    before = environment_of(run.path).get(ASKED)
    if not isinstance(before, str):
        raise UserError(f"{run.path} does not record what `regard train` was asked for; continue it: regard resume")
    old, new = (dict(_values(tomllib.loads(text))) for text in (before, asked))
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            was, now = (flag_text(values.get(key, "none")) for values in (old, new))
            raise UserError(
                f"the run {run.path} was started with {key} = {was}, not {now}; give the same options, or another "
                "--name"
            )


def _values(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested tables by their keys with dots."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def environment_of(path: Path) -> dict[str, object]:
    """What a run records of its start; nothing if it cannot be read."""
    with suppress(UserError):
        return Run.open(path).environment
    return {}
