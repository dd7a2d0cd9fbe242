"""The user's cache of downloads and computed files. It may be deleted at any time.

Writes are atomic: files are written into a temporary folder under `partial/`, synced, and renamed into place. Two
processes that need the same entry both compute it, and one result is kept.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from regard.errors import UserError

T = TypeVar("T")


def cache_folder() -> Path:
    """``REGARD_CACHE`` if set, else ``regard`` in the platform's cache folder."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "regard"


@contextmanager
def partial_folder(cache: Path) -> Iterator[Path]:
    """A temporary folder in the cache, removed at the end.

    An ``OSError`` raised inside means that the cache could not be written: readers raise ``UserError`` themselves.
    """
    try:
        (cache / "partial").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache / "partial", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise UserError(
            f"cannot write in the cache folder {cache}: {error.strerror or error}; make room there, or set "
            "the environment variable REGARD_CACHE to a folder that can be written"
        ) from error


def settle(source: Path, target: Path) -> None:
    """Sync the file ``source`` and rename it to ``target``, which is replaced."""
    sync(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def store_json(cache: Path, target: Path, value: object) -> None:
    """Write ``value`` to the file ``target`` of the cache; a cache that cannot be written is ignored."""
    with suppress(UserError), partial_folder(cache) as partial:
        (partial / "json").write_text(json.dumps(value), encoding="utf-8")
        settle(partial / "json", target)


def settle_folder(source: Path, target: Path) -> None:
    """Sync the files of the folder ``source`` and rename it to ``target``, unless another process was first."""
    for file in source.iterdir():
        sync(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(source, target)
    except OSError:
        if not target.is_dir():
            raise


def cached(folder: Path, cache: Path, read: Callable[[Path], T | None], write: Callable[[Path], None]) -> T:
    """What ``read`` finds in ``folder``; if that is None, ``write`` first makes the folder's files.

    A folder that cannot be read is damaged, and replaced.
    """
    existed = folder.exists()  # before reading: a folder that appears later was written by another process
    found = read(folder)
    if found is None:
        with partial_folder(cache) as partial:
            if existed and read(folder) is None:  # a folder cannot be renamed onto another
                with suppress(FileNotFoundError):
                    folder.rename(partial / "damaged")
            (partial / "made").mkdir()
            write(partial / "made")
            settle_folder(partial / "made", folder)
        found = read(folder)
    if found is None:
        raise UserError(f"the tokens in {folder} cannot be read back; check that disk, or set REGARD_CACHE to another")
    return found


def sync(file: Path) -> None:
    """Flush the file to disk before it is renamed."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())
