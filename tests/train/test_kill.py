"""Exact resume, for real: `regard train` is killed with -9 at random moments, some of them during a save, and resumed.

Every resumed run must end bit-identical to the run that was never stopped: weights, optimizer, counters and losses.
"""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from regard.runs import Run
from warm_process import cache_inside, regard

CONFIG = """
seed = 5
[model]
kind = "gpt"
context = 32
layers = 2
heads = 2
width = 32
dropout = 0.1
ngrams = 2
[data]
kind = "text"
path = "text.txt"
batch = 8
[train]
steps = 60
accumulate = 2
log_every = 1
evaluate_every = 30
save_every = 7
keep = 2
optimizer = "muon"
schedule = "trapezoid"
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A folder with a text, a config, and the run that nobody stopped."""
    folder = tmp_path_factory.mktemp("kill")
    words = random.Random(0)
    text = " ".join(
        words.choice(["the", "cat", "sat", "on", "a", "mat", "and", "saw", "no", "dog", "at", "all"])
        for _ in range(4000)
    )
    (folder / "text.txt").write_text(text)
    (folder / "kill.toml").write_text(CONFIG)
    finish(folder, "train", "kill.toml", "--name", "whole")
    return folder


def finish(folder: Path, *arguments: str) -> None:
    done = regard(folder, *arguments)
    assert done.returncode == 0, done.stderr


def steps_logged(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for(condition, process: subprocess.Popen, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)


def kill_once(folder: Path, name: str, chance: random.Random, during_save: bool) -> bool:
    """Start a run and kill it at a random step, or while a half-written checkpoint lies there. Was it a save?"""
    run = folder / "runs" / name
    command = [sys.executable, "-m", "regard.cli", "train", "kill.toml", "--name", name]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=cache_inside(folder), stdout=nowhere, stderr=nowhere)
    after = chance.randrange(0, 50)
    wait_for(lambda: steps_logged(run) >= after, process)
    if during_save:  # an unfinished checkpoint is a folder that is not called step-...
        wait_for(lambda: bool(unfinished(run)), process)
    else:
        time.sleep(chance.random() * 0.02)
    caught = bool(unfinished(run))
    process.send_signal(signal.SIGKILL)
    process.wait()
    return caught


def unfinished(run: Path) -> list[Path]:
    folder = run / "checkpoints"
    return [path for path in folder.iterdir() if not path.name.startswith("step-")] if folder.is_dir() else []


def losses(run: Path) -> list[tuple]:
    """What was logged, without what the clock decides."""
    clocks = {"seconds", "tokens_per_second", "memory"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [tuple((k, v) for k, v in line.items() if k not in clocks) for line in lines]


def same_end(one: Path, two: Path) -> None:
    a, b = Run.open(one).latest(), Run.open(two).latest()
    assert a is not None
    assert b is not None
    assert a.step == b.step == 60
    for left, right in ((a.model(), b.model()), (a.optimizer(), b.optimizer())):
        assert left.keys() == right.keys()
        for key in left:
            assert torch.equal(left[key], right[key]), key
    assert losses(one) == losses(two)


def killed_and_resumed(folder: Path, count: int, seed: int) -> int:
    """Kill and resume ``count`` runs, every third during a save (and some twice); how many saves were hit."""
    chance = random.Random(seed)
    saves = 0
    for i in range(count):
        name = f"killed-{seed}-{i}"
        saves += kill_once(folder, name, chance, during_save=i % 3 == 0)
        if not (folder / "runs" / name).exists():  # killed before the folder was there: start again
            finish(folder, "train", "kill.toml", "--name", name)
        else:
            finish(folder, "resume", f"runs/{name}")
        same_end(folder / "runs" / "whole", folder / "runs" / name)
    return saves


def test_a_killed_run_ends_bit_identical(room):
    killed_and_resumed(room, 1, seed=1)


@pytest.mark.slow
def test_twenty_killed_runs_end_bit_identical(room):
    assert killed_and_resumed(room, 20, seed=2) >= 3, "too few kills fell into a save to prove anything"
