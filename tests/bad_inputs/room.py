"""A fresh folder for one mistake: a text, perhaps a trained run, and a look at everything before and after."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import warm_process

TEXT = "to be or not to be, that is the question\n" * 40
#: Small enough that a mistake which goes unnoticed ends soon.
TINY = (
    "--data.path text.txt --model.layers 1 --model.heads 2 --model.width 16 --model.context 16 "
    "--data.batch 4 --train.log_every 1 --train.save_every 2 --train.evaluate_every none --train.keep 3"
)


def environment(room: Path) -> dict[str, str]:
    """Of a process in that folder: its own cache, one thread, and nothing that a launcher may have set."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return kept | {"REGARD_CACHE": str(room / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def regard(
    room: Path,
    command: str,
    more: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
    stdout: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run `regard COMMAND` in a process of its own; `before` runs in it first, to set limits."""
    variables = environment(room) | {name: value.format(room=room) for name, value in (more or {}).items()}
    if before is None and stdout == subprocess.PIPE and "PYTHONPATH" not in (more or {}):
        return warm_process.regard(room, *shlex.split(command), environment=variables)
    return subprocess.run(
        [sys.executable, "-m", "regard.cli", *shlex.split(command)],
        cwd=room,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        preexec_fn=before,
    )


def contents(room: Path) -> dict[str, str]:
    """Every file and folder with a digest of what it holds.

    Left out are the finished things of the cache, which a mistake may leave for the next try, and who last held a
    lock.
    """
    found = {}
    for path in sorted(room.rglob("*")):
        name = path.relative_to(room).as_posix()
        if name.split("/")[0] == "cache" and not name.startswith("cache/partial/"):
            continue
        if path.is_file() and path.name != ".lock":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = ""
    return found
