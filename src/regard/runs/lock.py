"""One trainer per run: a lock that the operating system releases however the process ends."""

import errno
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError
from regard.runs.disk import writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
_open: set[int] = set()


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`, or say with a `UserError` who holds `what` already.

    The file stays when the lock is released: removing it would let two processes hold two files of one name.
    """
    with writing(str(path)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    _open.add(descriptor)
    try:
        try:
            _take(descriptor)
        except OSError as error:
            if error.errno in _HELD:
                holder = os.read(descriptor, 200).decode("utf-8", "replace").strip() or "another process"
                raise UserError(
                    f"{what} is being trained by {holder}; wait until it ends, stop it, or start another run"
                ) from None
            if error.errno not in _CANNOT_LOCK:
                raise
            warnings.warn(f"the file system of {path} has no locks: start only one trainer for {what}", stacklevel=3)
        with writing(str(path)):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node() or 'this machine'}".encode())
        yield
    finally:
        if descriptor in _open:  # a forked child has closed its own already
            _open.discard(descriptor)
            os.close(descriptor)


def _take(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        # Far behind the text, since Windows keeps others from reading the bytes that are locked.
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)


def _let_go_in_child() -> None:
    # A forked worker shares the lock; were the trainer killed, an idle worker would keep the run locked.
    while _open:
        os.close(_open.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
