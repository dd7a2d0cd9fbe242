"""A disk that is full after so many bytes: an error in a sentence, and every earlier checkpoint is still there."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.torture.kills import OPTIONS
from bench.torture.room import Room, Tally
from regard.runs import Run

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000


def small_disk(folder: Path, size: int) -> None:
    """Mount an empty file system of ``size`` bytes on a folder, in a mount namespace of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def attack(folder: Path, count: int, seed: int) -> Tally:
    """Train into a disk of ``count`` different sizes; copy what is left out of it and read it."""
    chance, tally = random.Random(seed), Tally("full disks", "disk sizes")
    room = Room(folder)
    disk, rest = room.path / "disk", room.path / "rest"
    disk.mkdir()
    refused = 0
    for _ in range(count):
        size = chance.randrange(4_096, 700_000)
        rest.mkdir(exist_ok=True)

        def begin(size: int = size) -> None:
            small_disk(disk, size)

        outcome = room.regard("train", *OPTIONS, "--name", "one", "--runs", "disk", before=_copying(disk, rest, begin))
        tally.tried += 1
        what = f"a disk of {size:,} bytes"
        if tally.judge(what, outcome):
            refused += outcome.code == 2
            _check_left(rest, what, tally)
        shutil.rmtree(rest)
    tally.notes["refused"] = refused
    return tally


def _copying(disk: Path, rest: Path, begin: Callable[[], None]) -> Callable[[], None]:
    """Mount before the command; after it, copy the disk's files to ``rest``, since the mount ends with the process."""

    def before() -> None:
        begin()
        leave = os._exit

        def copy_and_leave(code: int) -> None:
            shutil.copytree(disk, rest, dirs_exist_ok=True)
            leave(code)

        os._exit = copy_and_leave  # type: ignore[assignment] (the only place before the mount is gone)

    return before


def _check_left(rest: Path, what: str, tally: Tally) -> None:
    """Every checkpoint in the metrics' past that has a name must open."""
    run = rest / "one"
    if not (run / "config.toml").exists():
        return
    opened = Run.open(run)
    if opened.steps() and opened.latest() is None:
        tally.add("lost", f"{what}: no checkpoint opens: {opened.damaged}")
    elif opened.damaged:
        tally.add("lost", f"{what}: {opened.damaged[0]}")
