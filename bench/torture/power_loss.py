"""Power loss: what was not synced is gone. The run that is left opens, and ends as if nothing had happened.

The training process records at each fsync what the file or folder held at that moment. A crash image is built from
these records alone: a folder has the entries of its last fsync, a file the bytes of its last fsync, and a file that
was never synced is empty. This is the least that POSIX guarantees. A second image keeps each unsynced change with
probability one half.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

from bench.torture.kills import OPTIONS, fingerprint
from bench.torture.room import Room, Tally

Record = dict[int, Any]  # by inode: bytes of a file, or names and inodes of a folder


class Recorder:
    """Wraps ``os.fsync`` in this process; each call adds to a log."""

    def __init__(self, root: Path, log: Path):
        self.root, self.log, self.sync = root, log, os.fsync

    def __call__(self, descriptor: Any) -> None:
        self.sync(descriptor)
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if self.root not in (path, *path.parents) or not path.exists():
            return
        held: Any = path.read_bytes() if path.is_file() else {one.name: one.stat().st_ino for one in path.iterdir()}
        with self.log.open("ab") as file:
            pickle.dump((path.stat().st_ino, path.is_dir(), held, tree(self.root)), file)

    def install(self) -> None:
        os.fsync = self  # type: ignore[assignment] (records, and calls the real one)


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything below ``root`` at this moment, for the image that keeps some unsynced changes."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for path in sorted(root.rglob("*")):
        try:
            found[str(path.relative_to(root))] = (path.stat().st_ino, path.read_bytes() if path.is_file() else None)
        except OSError:  # gone meanwhile
            continue
    return found


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` crash images of one training: half of them strict, half of them mixed."""
    chance, tally = random.Random(seed), Tally("power loss", "crash images")
    room = Room(folder)
    runs, log = room.path / "runs", room.path / "fsync.log"
    runs.mkdir()
    outcome = room.regard("train", *OPTIONS, "--name", "whole", before=Recorder(runs, log).install)
    assert outcome.code == 0, outcome.err
    wanted = fingerprint(runs / "whole")
    records, root = read(log), runs.stat().st_ino
    shutil.move(runs, room.path / "finished")
    opened = 0
    for number in range(count):
        last = chance.randrange(1, len(records))
        shutil.rmtree(runs, ignore_errors=True)
        (strict if number % 2 == 0 else mixed)(records[:last], root, runs, chance)
        tally.tried += 1
        what = f"image {number} after fsync {last} of {len(records)}"
        run = runs / "whole"
        again = ("resume", "runs/whole") if run.exists() else ("train", *OPTIONS, "--name", "whole")
        outcome = room.regard(*again)
        opened += run.exists()
        if tally.judge(what, outcome) and (outcome.code != 0 or fingerprint(run) != wanted):
            tally.add("lost", f"{what}: exit {outcome.code}: {outcome.err.strip()[-200:]}")
    tally.notes |= {"fsync calls": len(records), "with a run in it": opened}
    return tally


def read(log: Path) -> list[tuple[int, bool, Any, dict[str, tuple[int, bytes | None]]]]:
    found = []
    with log.open("rb") as file:
        while True:
            try:
                found.append(pickle.load(file))  # our own log
            except EOFError:
                return found


class Durable:
    """The synced contents of a list of records."""

    def __init__(self, records: list[Any]):
        self.folders: Record = {inode: held for inode, is_folder, held, _ in records if is_folder}
        self.files: Record = {inode: held for inode, is_folder, held, _ in records if not is_folder}
        self.is_folder = {inode: data is None for *_, seen in records for inode, data in seen.values()}

    def build(self, inode: int, path: Path) -> None:
        """Write a folder with its synced entries."""
        path.mkdir(parents=True, exist_ok=True)
        for name, inner in self.folders.get(inode, {}).items():
            if self.is_folder.get(inner, inner in self.folders):
                self.build(inner, path / name)
            else:
                (path / name).write_bytes(self.files.get(inner, b""))


def strict(records: list[Any], root: int, target: Path, chance: random.Random) -> None:
    """Only what was synced."""
    Durable(records).build(root, target)


def mixed(records: list[Any], root: int, target: Path, chance: random.Random) -> None:
    """What was synced, and each unsynced new entry with probability one half, its bytes cut if they were not synced."""
    durable = Durable(records)
    durable.build(root, target)
    for name, (inode, data) in records[-1][3].items():
        path = target / name
        if path.exists() or not path.parent.is_dir() or chance.random() < 0.5:
            continue
        if data is None:
            durable.build(inode, path)
        else:
            path.write_bytes(durable.files.get(inode, data[: chance.randrange(len(data) + 1)]))
