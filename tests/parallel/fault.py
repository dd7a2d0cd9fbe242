"""Ends one rank by SIGKILL, once, before a step: ``regard --with fault.py`` with FAULT = "RANK STEP".

Every rank loads it; the one that is meant leaves a file and dies.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.train.engine import Engine
from regard.train.schedule import ConstantScheduleConfig

RANK, STEP = os.environ["FAULT"].split()
MARK = Path("faults") / os.environ["FAULT"]
_update = Engine.update


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
    if self.progress.step == int(STEP):
        end()
    return _update(self, *given)


if os.environ.get("RANK") == RANK:
    Engine.update = update  # type: ignore[method-assign]
