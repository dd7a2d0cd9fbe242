"""Two processes on one run folder: one works, the other says who holds it, and the run ends as it should."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from bench.torture.kills import OPTIONS, fingerprint, lines, wait_for
from bench.torture.room import Fork, Room, Tally

READERS = (
    ("info", "runs/two"),
    ("generate", "runs/two", "--tokens", "4"),
    ("evaluate", "runs/two"),
    ("report", "runs/two"),
)


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` trainings, each met by a second writer and a reader."""
    chance, tally = random.Random(seed), Tally("two processes", "second writers and readers")
    room = Room(folder)
    assert room.regard("train", *OPTIONS, "--name", "whole").code == 0
    wanted = fingerprint(room.path / "runs" / "whole")
    for number in range(count):
        run = room.path / "runs" / "two"
        first = Fork(room.path, ("train", *OPTIONS, "--name", "two"))
        after = chance.randrange(4, 40)
        wait_for(lambda run=run, after=after: lines(run) >= after, first)
        second = room.regard("resume", "runs/two")
        reader = room.regard(*chance.choice(READERS))
        tally.tried += 2
        tally.judge(f"second writer {number}", second)
        tally.judge(f"reader {number}", reader)
        outcome = first.wait()
        if tally.judge(f"first writer {number}", outcome) and (outcome.code != 0 or fingerprint(run) != wanted):
            tally.add("lost", f"training {number} ends otherwise: {outcome.err.strip()[-200:]}")
        shutil.rmtree(run)
    return tally
