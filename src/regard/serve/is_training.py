"""Check whether a run is being trained, without disturbing the trainer."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

RECENT = 600.0  # seconds: a trainer on another machine is assumed alive if it wrote metrics within this time


def is_training(path: Path) -> bool:
    """Return True if a trainer holds the lock of the run in ``path``.

    The lock file stays after training ends, with the trainer's process id. The lock is tried only if that process is
    alive: an attempt, however short, could make a starting trainer fail. It is needed because ids are reused.
    """
    if fcntl is None:
        return _recently_logged(path)
    try:
        match = re.match(r"process (\d+) on (.*)", (path / ".lock").read_text("utf-8", "replace")[:200])
    except OSError:
        return False
    if match is None:
        return False
    local = match[2].strip() == (platform.node() or "this machine")
    if not (_is_alive(int(match[1])) if local else _recently_logged(path)):
        return False
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # it belongs to another user
        return True
    except (OSError, OverflowError):
        return False
    return True


def _recently_logged(path: Path) -> bool:
    try:
        return time.time() - (path / "metrics.jsonl").stat().st_mtime < RECENT
    except OSError:
        return False
