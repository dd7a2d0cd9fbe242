"""One writer per run: a file lock, which the operating system releases when the process ends."""

import errno
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError
from regard.runs.disk import writing
from regard.untrusted import open_plain

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
_open: set[int] = set()


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``, or raise a ``UserError`` that names the holder of ``what``.

    The file is not removed: otherwise two processes could lock two files of the same name.
    """
    with writing(str(path)):
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
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
        if descriptor in _open:  # a forked child has already closed its own
            _open.discard(descriptor)
            os.close(descriptor)


def _take(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        # Far behind the text, since Windows prevents others from reading the locked bytes.
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)


def _release_in_child() -> None:
    # A forked worker shares the lock; if the trainer is killed, an idle worker would keep the run locked.
    while _open:
        os.close(_open.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
