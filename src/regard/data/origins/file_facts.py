"""A cache of facts about files (a hash, a length), valid as long as the files are unchanged.

A fact is stored with the path, size, mtime, ctime, inode and device of each file, and is used only if all of them are
the same. No program can set ctime, so a copy with the old mtime is detected. Facts about a file that changed within the
last seconds are not stored: it might change again within one tick of a coarse clock.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from regard.data.origins.cache import store_json

_FORMAT = "seen 1"  # part of every key: change it when the format changes
_SETTLED = 10.0  # seconds since the last change; clocks of file servers may be coarse, and differ


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
