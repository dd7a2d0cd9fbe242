"""Training killed with SIGKILL at random moments, some inside a save, then resumed: the end is the same to the bit."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from bench.torture.room import TINY, Fork, Room, Tally
from regard.runs import Run

STEPS = 60
PATIENCE = 600  # seconds after which a training is taken to hang
OPTIONS = (*TINY, "--train.steps", str(STEPS), "--train.accumulate", "2", "--model.dropout", "0.1")


class Process(Protocol):
    """A `Fork` or a ``subprocess.Popen``."""

    def poll(self) -> object: ...  # None while it runs

    def kill(self) -> None: ...

    def wait(self) -> object: ...


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` kills, every fourth while a checkpoint is being written."""
    chance, tally = random.Random(seed), Tally("kills", "runs killed and resumed")
    room = Room(folder)
    assert room.regard("train", *OPTIONS, "--name", "whole").code == 0
    wanted = fingerprint(room.path / "runs" / "whole")
    inside = 0
    for number in range(count):
        name = f"killed-{number}"
        run = room.path / "runs" / name
        process = Fork(room.path, ("train", *OPTIONS, "--name", name))
        inside += kill_once(run, process, chance, STEPS, during_save=number % 4 == 0)
        tally.tried += 1
        again = ("resume", f"runs/{name}") if run.exists() else ("train", *OPTIONS, "--name", name)
        outcome = room.regard(*again)
        if tally.judge(f"kill {number}, resume", outcome):
            if outcome.code != 0:
                tally.add("lost", f"kill {number}: {outcome.err.strip()[-200:]}")
            elif fingerprint(run) != wanted:
                tally.add("lost", f"kill {number}: another end")
        shutil.rmtree(run, ignore_errors=True)
    tally.notes["inside a save"] = inside
    return tally


def kill_once(run: Path, process: Process, chance: random.Random, steps: int, during_save: bool) -> bool:
    """Kill a training at a random step, or while an unfinished checkpoint lies there. Was it inside a save?"""
    after = chance.randrange(0, steps - 5)
    wait_for(lambda: lines(run) >= after, process)
    if during_save:
        wait_for(lambda: unfinished(run), process)
    else:
        time.sleep(chance.random() * 0.02)
    caught = unfinished(run)
    process.kill()
    process.wait()
    return caught


def wait_for(condition: Callable[[], bool], process: Process) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)


def lines(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def unfinished(run: Path) -> bool:
    """An unfinished checkpoint is a folder whose name does not begin with "step-"."""
    folder = run / "checkpoints"
    return folder.is_dir() and any(not path.name.startswith("step-") for path in folder.iterdir())


def fingerprint(run: Path) -> tuple[object, ...]:
    """The last checkpoint of a run, to the bit."""
    last = Run.open(run).latest()
    if last is None:
        return ()
    tensors = {**{f"model.{k}": v for k, v in last.model().items()}, **last.optimizer()}
    return (last.step, *((name, digest(one)) for name, one in sorted(tensors.items())))


def digest(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
