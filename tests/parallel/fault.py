"""Ends one rank by SIGKILL, once: ``regard --with fault.py`` with FAULT = "RANK STEP" or "RANK save".

Every rank loads it; the one that is meant leaves a file and dies.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.train.engine import Engine
from regard.train.schedule import ConstantScheduleConfig

RANK, WHEN = os.environ["FAULT"].split()
MARK = Path("faults") / os.environ["FAULT"]
_update, _fsync = Engine.update, os.fsync


@dataclass(frozen=True)
class FaultConfig(ConstantScheduleConfig, kind="fault"):
    """A part, since a file of parts needs one."""


def end() -> None:
    """End this process, unless one was ended before."""
    MARK.parent.mkdir(exist_ok=True)
    try:
        MARK.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def update(self: Engine, *given: Any) -> Any:
    """As in the engine, but for the fault."""
    if self.progress.step == int(WHEN):
        end()
    return _update(self, *given)


def fsync(file: int) -> None:
    """As in the system, but for the fault: while tensors of a checkpoint are written."""
    if ".safetensors" in os.readlink(f"/proc/self/fd/{file}"):
        end()
    _fsync(file)


if os.environ.get("RANK") == RANK:
    if WHEN == "save":
        os.fsync = fsync
    else:
        Engine.update = update  # type: ignore[method-assign]
