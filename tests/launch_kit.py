"""Runs on several ranks of this machine, started by the command line, and what is left of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from regard.runs import Run
from warm_process import cache_inside

STEPS = 60
CONFIG = f"""
seed = 5
[model]
kind = "gpt"
context = 8
layers = 2
heads = 2
width = 16
dropout = 0.1
[data]
kind = "text"
path = "text.txt"
batch = 4
[train]
steps = {STEPS}
log_every = 1
evaluate_every = 30
save_every = 10
device = "cpu"
"""
TRAIN = ("-m", "regard", "train", "two.toml")
CLOCKS = {"seconds", "tokens_per_second", "memory", "slowest_rank", "step_seconds_slowest", "step_seconds_others"}


def undisturbed(folder: Path) -> Path:
    """A config in the folder, and a run of it on two ranks, which chose its own name: two-1."""
    text = "the cat sat on the mat; a rat ran at the cat. " * 12
    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "two.toml").write_text(CONFIG)
    said, code = finish(start(folder, *TRAIN, "--processes", "2"))
    assert code == 0, said
    assert names(folder) == ["two-1"]
    return folder


def start(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`python ARGUMENTS` in the folder."""
    variables = cache_inside(folder) | (environment or {})
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    """What a process printed to standard error, and its exit code."""
    try:
        _, said = process.communicate(timeout=900)
    finally:
        process.kill()
    return said, process.returncode


def names(folder: Path) -> list[str]:
    """The runs in the folder."""
    return sorted(path.name for path in (folder / "runs").iterdir())


def wait(until: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while the process lives."""
    end = time.monotonic() + 600
    while not until():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def saved(folder: Path, name: str) -> bool:
    """Whether a run has its first checkpoint, and not yet its last."""
    path = folder / "runs" / name
    return path.exists() and STEPS > max(Run.open(path).steps(), default=0) > 0


def ranks(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that the launcher has started, by rank."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        found |= {int(text[5:]): int(child) for text in variables if text.startswith("RANK=")}
    return [found[rank] for rank in sorted(found)]


def losses(run: Run) -> list[dict]:
    """What was logged, but for times."""
    return [{key: value for key, value in record.items() if key not in CLOCKS} for record in run.metrics()]


def same_end(folder: Path, name: str) -> None:
    """The run has every bit of the undisturbed one."""
    whole, other = (Run.open(folder / "runs" / each) for each in ("two-1", name))
    a, b = whole.checkpoint(STEPS), other.checkpoint(STEPS)
    for tensors, others in ((a.model(), b.model()), (a.optimizer(), b.optimizer())):
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    assert losses(whole) == losses(other)
