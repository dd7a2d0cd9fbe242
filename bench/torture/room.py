"""A folder to attack, commands in forked processes, and the count of what went wrong."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "no", "dog", "at", "all", "to", "be", "or", "not")
SIZES = "--model.layers 1 --model.heads 2 --model.width 16 --model.context 16 --data.batch 4 --train.device cpu"
EVENTS = "--train.log_every 1 --train.save_every 3 --train.evaluate_every none --train.keep 3"
TINY = f"--data.path text.txt {SIZES} {EVENTS}".split()
RUN = "runs/one"
WARNING = re.compile(r" is damaged|; taking step \d+ instead|are not checked$")
CPU_LIMIT, WALL_LIMIT = 10.0, 120.0  # seconds; a loaded machine stretches the second, not the first


class Outcome(NamedTuple):
    """How a command ended."""

    code: int  # negative: killed by that signal
    out: str
    err: str
    hung: bool

    @property
    def said(self) -> bool:
        """Whether it refused, or named a checkpoint or manifest that it does without; progress does not count."""
        return self._refused or any(map(WARNING.search, self.err.splitlines()))

    @property
    def _refused(self) -> bool:
        return any(line.startswith("regard: ") for line in self.err.splitlines())

    @property
    def clean(self) -> bool:
        """Success, an error in a sentence, or the findings of `doctor` and `prove` (exit code 1)."""
        ended = self.code in (0, 2, 130) or (self.code == 1 and not self._refused)
        return not self.hung and ended and "Traceback" not in self.err


@dataclass
class Tally:
    """The count of one attack."""

    attack: str
    unit: str  # what is counted
    tried: int = 0
    lost: int = 0  # something that was saved is gone, or ends otherwise
    tracebacks: int = 0  # tracebacks, internal errors and crashes
    hangs: int = 0
    silent: int = 0  # another answer without a word
    executed: int = 0  # code from a file was run
    examples: list[str] = field(default_factory=list)
    notes: dict[str, int | float | str] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        return self.lost + self.tracebacks + self.hangs + self.silent + self.executed

    def add(self, fault: str, example: str) -> None:
        """Count a fault; the first examples are kept."""
        setattr(self, fault, getattr(self, fault) + 1)
        if len(self.examples) < 20:
            self.examples.append(f"{fault}: {example}")

    def judge(self, what: str, outcome: Outcome) -> bool:
        """Count a command that did not end cleanly. Was it clean?"""
        if outcome.hung:
            self.add("hangs", what)
        elif not outcome.clean:
            self.add("tracebacks", f"{what}: exit {outcome.code}: {outcome.err.strip()[-300:]}")
        return outcome.clean


class Room:
    """A folder with a text and, after ``train``, a run of nine steps with three checkpoints."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        words = random.Random(0)
        self.text = " ".join(words.choice(WORDS) for _ in range(3000))
        (path / "text.txt").write_text(self.text)

    @property
    def run(self) -> Path:
        return self.path / RUN

    @property
    def pristine(self) -> Path:
        """A copy of the runs as they were trained."""
        return self.path / "pristine"

    def train(self) -> None:
        """Train the run, and keep a copy of it."""
        outcome = self.regard("train", *TINY, "--train.steps", "9", "--name", "one")
        assert outcome.code == 0, outcome.err
        shutil.copytree(self.path / "runs", self.pristine)

    def fresh(self) -> None:
        """Replace the runs by their copy."""
        shutil.rmtree(self.path / "runs", ignore_errors=True)
        shutil.copytree(self.pristine, self.path / "runs")

    def regard(self, *arguments: str, before: Callable[[], object] | None = None) -> Outcome:
        """`regard ARGUMENTS` in a forked process of this folder."""
        process = Fork(self.path, arguments, before)
        return process.wait()


class Fork:
    """`regard` in a process forked from this one, which has imported torch already.

    ``before`` runs in the new process first: limits, recorders.
    """

    def __init__(self, folder: Path, arguments: tuple[str, ...], before: Callable[[], object] | None = None):
        self.files = [folder / f".torture-{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self.pid = os.fork()
        if self.pid == 0:
            self._run(folder, arguments, before)

    def _run(self, folder: Path, arguments: tuple[str, ...], before: Callable[[], object] | None) -> None:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            for descriptor, file in zip((1, 2), self.files, strict=True):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ["REGARD_CACHE"] = str(folder / "cache")
            resource.setrlimit(resource.RLIMIT_CPU, (int(CPU_LIMIT) * 6, int(CPU_LIMIT) * 6))
            if before is not None:
                before()
            from regard.cli import main

            code = main(list(arguments))
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException as error:  # nothing may return into the parent's code
            os.write(2, f"Traceback: {type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)

    def poll(self) -> object:
        """None while the process runs; it is not reaped."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit: float = WALL_LIMIT) -> Outcome:
        """Wait for the end; the process is killed when it takes too long."""
        end = time.monotonic() + limit
        while not (ended := self.poll() is not None) and time.monotonic() < end:
            time.sleep(0.002)
        if not ended:
            os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        out, err = (file.read_text(errors="replace") if file.exists() else "" for file in self.files)
        for file in self.files:
            file.unlink(missing_ok=True)
        spent = usage.ru_utime + usage.ru_stime
        return Outcome(os.waitstatus_to_exitcode(status), out, err, not ended or spent > CPU_LIMIT)


def answers(text: str) -> str:
    """Output without what the clock decides."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    clocks = {"seconds", "tokens_per_second", "memory", "time"}
    return json.dumps({key: value for key, value in found.items() if key not in clocks}, sort_keys=True)
