"""The user's cache of downloads and computed files. It may be deleted at any time.

Writes are atomic: files are written into a temporary folder under `partial/`, synced, and renamed into place. Two
processes that need the same entry both compute it, and one result is kept.

It also keeps facts about files (a hash, a length), valid as long as the files are unchanged. A fact is stored with the
path, size, mtime, ctime, inode and device of each file, and is used only if all of them are the same. No program can
set ctime, so a copy with the old mtime is detected. Facts about a file that changed within the last seconds are not
stored: it might change again within one tick of a coarse clock.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from regard.errors import UserError

T = TypeVar("T")
_FORMAT = "seen 1"  # part of every key: change it when the format changes
_SETTLED = 10.0  # seconds since the last change; clocks of file servers may be coarse, and differ


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


class FileStats(NamedTuple):
    """The `stat` of some files at one moment."""

    state: str  # a hash over all of them
    sizes: tuple[int, ...]
    settled: bool  # whether none of them changed recently


def stat_files(files: Sequence[Path]) -> FileStats:
    """`stat` the files. An ``OSError`` names a missing one."""
    digest, sizes, newest = hashlib.sha256(), [], 0.0
    for file in files:
        found = file.stat()
        stats = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
        digest.update(repr((str(file.absolute()), stats)).encode())
        sizes.append(found.st_size)
        newest = max(newest, found.st_mtime, found.st_ctime)
    return FileStats(digest.hexdigest(), tuple(sizes), newest + _SETTLED < time.time())


def recall(cache: Path, key: str, now: FileStats) -> dict | None:
    """The facts stored under ``key`` for files with these stats; None if there are none."""
    try:
        kept = json.loads(_path(cache, key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    sound = isinstance(kept, dict) and kept.get("state") == now.state and isinstance(kept.get("answer"), dict)
    return kept["answer"] if sound else None


def remember(cache: Path, key: str, before: FileStats, after: FileStats, facts: dict) -> None:
    """Store the facts, if the files did not change while they were read.

    A cache that cannot be written is ignored: the files are then read each time.
    """
    if before.state == after.state and before.settled:
        store_json(cache, _path(cache, key), {"state": before.state, "answer": facts})


def forget(cache: Path, key: str) -> None:
    """Remove the facts stored under ``key``."""
    with suppress(OSError):
        _path(cache, key).unlink()


def _path(cache: Path, key: str) -> Path:
    return cache / "seen" / f"{hashlib.sha256(f'{_FORMAT}|{key}'.encode()).hexdigest()[:32]}.json"
