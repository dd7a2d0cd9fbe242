"""Exact resume, for real: `regard train` is killed with -9 at random moments, some of them during a save, and resumed.

Every resumed run must end bit-identical to the run that was never stopped: weights, optimizer, counters and losses.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.torture.kills import kill_once

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


def kill(folder: Path, name: str, chance: random.Random, during_save: bool) -> bool:
    """Start a run in a process that imports everything itself, and kill it. Was it inside a save?"""
    command = [sys.executable, "-m", "regard.cli", "train", "kill.toml", "--name", name]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=cache_inside(folder), stdout=nowhere, stderr=nowhere)
    return kill_once(folder / "runs" / name, process, chance, 55, during_save)


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
        saves += kill(folder, name, chance, during_save=i % 3 == 0)
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
