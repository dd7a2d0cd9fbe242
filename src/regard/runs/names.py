"""New run folders and their names: what is allowed, the next free number, and suggestions for messages."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from regard.config import nearest
from regard.errors import UserError
from regard.runs.disk import sync, unfinished, writing

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, *([errno.EACCES] if os.name == "nt" else [])}


def check_name(name: str) -> None:
    """Refuse what cannot name a run."""
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise UserError(
            f"{name!r} cannot name a run; use up to 100 letters, digits, '.', '_' and '-', "
            "starting with a letter, digit or '_'"
        )


def create_folder(root: Path, name: str | None, prefix: str, write: Callable[[Path], None]) -> Path:
    """Create ``root/name``, by default ``<prefix>-1``, ``<prefix>-2``, ..., with what ``write`` writes, atomically."""
    with writing(f"the run folder in {root}"):
        fresh = not root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UserError(f"{root} is a file, not a folder; choose another folder for runs") from None
        temporary = root / unfinished("run")
        temporary.mkdir()
        try:
            write(temporary)
            sync(temporary)
            path = _claim(temporary, root, name, prefix)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            if fresh:
                with suppress(OSError):  # another process put a run into it in the meantime
                    root.rmdir()
            raise
        sync(root)
    return path


def _claim(temporary: Path, root: Path, name: str | None, prefix: str) -> Path:
    """Rename the finished folder. A run is never empty, so renaming onto another one fails."""
    number = 1 + max(_numbers(root, prefix), default=0)
    while True:
        path = root / (f"{prefix}-{number}" if name is None else name)
        try:
            return temporary.rename(path)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        if name is not None:
            raise taken(path)
        number += 1


def taken(path: Path) -> UserError:
    """The error for a name that is taken."""
    if not path.is_dir():
        return UserError(f"there is already a file {path}; choose another --name for the run")
    return UserError(f"there is already a run {path}; choose another --name, or continue it: regard resume {path}")


def _numbers(root: Path, prefix: str) -> Iterator[int]:
    for path in root.iterdir():
        head, _, tail = path.name.rpartition("-")
        if head == prefix and re.fullmatch("[0-9]{1,9}", tail):
            yield int(tail)


def other_runs(path: Path) -> str:
    """The runs in the same folder, for messages."""
    parent = path.parent
    names = sorted(other.parent.name for other in parent.glob("[!.]*/config.toml")) if parent.is_dir() else []
    if not names:
        return "; give the folder of a run"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    near = nearest(path.name, names)
    return f"; in {parent} there are: {shown}" + (f"; did you mean {parent / near}?" if near else "")
