"""Keep freed memory in the process.

A training step on a CPU frees and allocates the same tens of megabytes again and again. By default glibc returns freed
memory at the top of its heap to the system, which then hands it out again page by page: about a thousand page faults a
step at the size of the small recipe, 3-4 % of its time. Two settings of glibc prevent that.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
_KEEP, _LARGEST = 2**31 - 1, 32 * 2**20  # never trim; take up to 32 MiB (glibc's limit) from the heap


def keep_freed_memory() -> bool:
    """Set both; False where the C library is not glibc on Linux."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEEP)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))
