"""Remembering what a file was found to be, so that reading it all again can be left out while it is unchanged.

An answer is kept together with what the system says about each file: its path, size, times of change, inode
and device. It is used again only if every one of them is the same. The time of the last change of the inode
(ctime) is among them, which no program can set: a copy made to look as old as the file it replaces is noticed.
A file that changed within the last seconds is not remembered at all: it might change once more within the
same tick of a coarse clock.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from regard.data.origins.cache import partial_folder, settle
from regard.errors import UserError

_FORMAT = "seen 1"  # part of every key: change it when what is remembered changes its meaning
_SETTLED = 10.0  # seconds since the last change; clocks of file servers may tick in seconds, and differ


class FileStats(NamedTuple):
    """What the system says about some files at one moment."""

    state: str  # one hash over all of them
    sizes: tuple[int, ...]
    settled: bool  # whether all of them have been left alone for a while


def stat_files(files: Sequence[Path]) -> FileStats:
    """Look at the files without reading them. An `OSError` says which one is missing."""
    digest, sizes, newest = hashlib.sha256(), [], 0.0
    for file in files:
        found = file.stat()
        told = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
        digest.update(repr((str(file.absolute()), told)).encode())
        sizes.append(found.st_size)
        newest = max(newest, found.st_mtime, found.st_ctime)
    return FileStats(digest.hexdigest(), tuple(sizes), newest + _SETTLED < time.time())


def recall(cache: Path, question: str, now: FileStats) -> dict | None:
    """The answer to a question about files that look as they do `now`; None if it is not known."""
    try:
        kept = json.loads(_place(cache, question).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    sound = isinstance(kept, dict) and kept.get("state") == now.state and isinstance(kept.get("answer"), dict)
    return kept["answer"] if sound else None


def remember(cache: Path, question: str, before: FileStats, after: FileStats, answer: dict) -> None:
    """Keep the answer, if the files looked the same before they were read and after.

    A cache that cannot be written is no reason to stop: the files are then read anew each time.
    """
    if before.state != after.state or not before.settled:
        return
    with suppress(UserError), partial_folder(cache) as partial:
        (partial / "seen").write_text(json.dumps({"state": before.state, "answer": answer}), encoding="utf-8")
        settle(partial / "seen", _place(cache, question))


def forget(cache: Path, question: str) -> None:
    """Drop the answer to a question."""
    with suppress(OSError):
        _place(cache, question).unlink()


def _place(cache: Path, question: str) -> Path:
    return cache / "seen" / f"{hashlib.sha256(f'{_FORMAT}|{question}'.encode()).hexdigest()[:32]}.json"
