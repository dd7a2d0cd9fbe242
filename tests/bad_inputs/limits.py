"""Real limits of a process, set between fork and exec: its file size, its memory, its power over permissions."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable

#: What a process gets beyond its size after it has imported everything: enough for a tiny model, and no more.
ROOM = 450 * 2**20
_SIZE = "import regard.train; print([line for line in open('/proc/self/status') if line.startswith('VmData')][0])"

_DROP_FROM_BOUNDING_SET, _OVERRIDE_PERMISSIONS, _READ_ANYTHING = 24, 1, 2  # prctl(2), capabilities(7)


def file_size(count: int) -> Callable[[], None]:
    """No file may grow beyond `count` bytes: the disk is full."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


def memory() -> Callable[[], None]:
    """The process gets little memory. How much torch takes to begin with differs from build to build.

    What counts is memory that can be written. A limit on addresses (RLIMIT_AS) would count what the allocator only
    reserves too, which differs from one start to the next.
    """
    shown = subprocess.run([sys.executable, "-c", _SIZE], capture_output=True, text=True, check=True).stdout
    count = int(shown.split()[1]) * 1024 + ROOM
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (count, count))


def no_privilege() -> None:
    """The superuser obeys permissions like everybody else."""
    if os.geteuid() == 0 and sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        for capability in (_OVERRIDE_PERMISSIONS, _READ_ANYTHING):
            libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
