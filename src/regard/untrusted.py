"""What others may have written, such as a received run folder: opened only if it is a plain file, limited in size and
depth, and printed without control characters.
"""

import errno
import mmap
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from regard.errors import UserError

#: The largest file that is read whole, in bytes, and the deepest nesting of tables and lists in it.
LARGEST, DEEPEST = 64 * 2**20, 64
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
# Control characters but tab and new line (C0, DEL, C1), and surrogates, which no output can encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]|\r(?!\n)")


class UnsafeFile(UserError, OSError):
    """Something other than a plain file of a reasonable size."""

    def __str__(self) -> str:
        return f"{self.filename} is {self.strerror}; put the file itself there, or restore it from a copy"


def open_plain(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A descriptor of ``path``, as by ``os.open``; `UnsafeFile` unless it is a plain file or will be created.

    Links are not followed (``follow``: they are), and nothing is waited for, as with a FIFO. A file with a second name
    (a hard link) is not opened for writing: the other name may be outside the folder.
    """
    try:
        _check(path, os.stat(path) if follow else os.lstat(path), flags)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    names = ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", *(() if follow else ("O_NOFOLLOW",)))
    for name in names:
        flags |= getattr(os, name, 0)  # Windows has only some of them
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFile(errno.ELOOP, "a link, not a plain file", str(path)) from None
        raise
    try:
        _check(path, os.fstat(descriptor), flags)
    except UnsafeFile:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, most: int = LARGEST, *, follow: bool = False) -> bytes:
    """The content of a plain file of at most ``most`` bytes, opened by ``open_plain``."""
    with open(open_plain(path, follow=follow), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnsafeFile(errno.EFBIG, f"a file of {size:,} bytes, and {most:,} is the most", str(path))
        return file.read(most)


def map_plain(path: Path, *, follow: bool = False) -> mmap.mmap | bytes:
    """The content of a plain file, mapped into memory, so that only what is accessed is read."""
    try:
        with open(open_plain(path, follow=follow), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> UserError:
    """The sentence about a file that cannot be read."""
    if isinstance(error, UnsafeFile):
        return error
    return UserError(f"{path} cannot be read ({error.strerror}); check its permissions")


def check_depth(value: object) -> None:
    """Raise a ValueError if tables and lists are nested more than `DEEPEST` deep, too deep for recursive code."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        tables = [list(item.values()) if isinstance(item, Mapping) else item for item in level]
        level = [inner for item in tables if isinstance(item, list) for inner in item]
        if not level:
            return
    raise ValueError(f"the tables or lists are nested too deeply (more than {DEEPEST}); flatten them")


def printable(text: str) -> str:
    r"""``text`` with control characters, which a terminal would obey, as ``\u001b``; tabs and line ends are kept."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _check(path: Path, status: os.stat_result, flags: int) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise UnsafeFile(errno.EINVAL, f"{_KINDS.get(kind, 'a device')}, not a plain file", str(path))
    if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        raise UnsafeFile(errno.EMLINK, "a hard link to a file that has another name too", str(path))
