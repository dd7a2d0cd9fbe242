"""Whether a run is being trained at this moment, asked without disturbing whoever trains it."""

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

FRESH = 600.0  # seconds since its last sign of life within which a trainer on another machine is believed in


def held(path: Path) -> bool:
    """Whether somebody holds the run's lock.

    The lock file stays when a trainer ends, with its process number. Where that process is gone there is nothing to
    ask; where it lives, the lock is tried for an instant, since the number may by now be another program's.
    """
    lock = path / ".lock"
    if fcntl is None:
        return _fresh(path)
    try:
        told = lock.read_text("utf-8", "replace")[:200]
    except OSError:
        return False
    match = re.match(r"process (\d+) on (.*)", told)
    if match is None:
        return False
    here = match[2].strip() == (platform.node() or "this machine")
    if _alive(int(match[1])) if here else _fresh(path):
        return _locked(lock)
    return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    except OSError:
        return False
    return True


def _fresh(path: Path) -> bool:
    try:
        return time.time() - (path / "metrics.jsonl").stat().st_mtime < FRESH
    except OSError:
        return False


def _locked(lock: Path) -> bool:
    assert fcntl is not None
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
