"""Train many experiments, each in its own process; what is finished is read, what is half done continues."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import NamedTuple

from regard.config import to_toml
from regard.config.parts import load_declared, loaded_files
from regard.errors import UserError
from regard.runs import Run, environment
from regard.runs.disk import JsonObject, replace_files
from regard.runs.waiting import clock
from regard.train import Experiment, Observer, train
from regard.train.diagnose import Diverged

RESULTS = "trials"  # the folder of results, beside those of the runs
GRACE = 30.0  # seconds that a training has to save a checkpoint when it must end


@dataclass(frozen=True)
class Trial:
    """An experiment with a name. Its run folder is named after both, so a changed experiment is another run."""

    name: str
    experiment: Experiment

    @property
    def run_name(self) -> str:
        """The name of the run folder."""
        digest = hashlib.sha256(to_toml(self.experiment).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', self.name).strip('-.') or 'trial'}-{digest}"


class Outcome(NamedTuple):
    """The result of a trial. ``loss`` is the last validation loss, infinite if the training diverged."""

    path: Path
    loss: float
    steps: int
    tokens: int
    seconds: float  # of training, without preparation
    problem: str | None = None

    def curve(self, measure: str = "validation_loss") -> list[JsonObject]:
        """The records of the run that hold a measure."""
        return [record for record in Run.open(self.path).metrics() if measure in record]


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_trials(
    trials: Sequence[Trial],
    folder: Path,
    workers: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    threads: int | None = None,
    observers: Sequence[Callable[[], Observer]] = (),
) -> Iterator[tuple[Trial, Outcome]]:
    """Train every trial in ``folder``; yields each with its outcome as soon as it is known.

    ``workers`` processes (default: one per core, or one per GPU), of ``threads`` each (default: their share of the
    cores), train one trial at a time, with one of each of the ``observers``. A trial that was finished by an earlier
    call is read, and one that was interrupted continues.
    """
    left = []
    for trial in trials:
        if (outcome := finished(folder, trial)) is None:
            left.append(trial)
        else:
            yield trial, outcome
    if not left:
        return
    count = min(len(left), workers or default_workers([trial.experiment for trial in left]))
    threads = threads or max(1, cores() // count)
    files = [name for name in loaded_files() if name.endswith(".py")]
    # "spawn": a child that is forked after PyTorch has started its threads may hang.
    spawn, free = get_context("spawn"), gpus([trial.experiment for trial in left])
    prepared = (threads, files, free, spawn.Value("i", 0))
    with ProcessPoolExecutor(count, spawn, _prepare_worker, prepared) as pool:
        waiting = {pool.submit(run_trial, folder, trial, observers): trial for trial in left}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    trial, outcome = waiting.pop(future), future.result()
                    say(f"{trial.name}: {describe(outcome)} ({len(trials) - len(waiting)} of {len(trials)})")
                    yield trial, outcome
        except BrokenProcessPool:
            raise UserError(f"a training process was killed, perhaps by a lack of memory; {fewer(count)}") from None
        finally:  # also after an error, Ctrl-C, or a caller that wants no more of them
            pool.shutdown(wait=True, cancel_futures=True)


def fewer(workers: int) -> str:
    """What to do when memory runs out."""
    again = "the same command continues"
    return f"{again}, with --workers {workers // 2} it needs less" if workers > 1 else f"{again}; try smaller models"


def describe(outcome: Outcome) -> str:
    """An outcome in words."""
    if outcome.problem is not None:
        return outcome.problem
    return f"validation loss {outcome.loss:.4f} after {outcome.steps:,} steps in {clock(outcome.seconds)}"


def default_workers(experiments: Sequence[Experiment]) -> int:
    """One worker per GPU if the experiments are trained there, otherwise one per core."""
    import torch

    on_gpu = any(one.train.device not in ("auto", "cpu") for one in experiments) or torch.cuda.is_available()
    return max(1, torch.cuda.device_count()) if on_gpu else cores()


def finished(folder: Path, trial: Trial) -> Outcome | None:
    """The recorded outcome of a trial, if it is there and whole."""
    path = folder / RESULTS / f"{trial.run_name}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        loss = math.inf if record["loss"] is None else float(record["loss"])
        numbers = int(record["steps"]), int(record["tokens"]), float(record["seconds"])
        return Outcome(folder / trial.run_name, loss, *numbers, record["problem"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_trial(folder: Path, trial: Trial, observers: Sequence[Callable[[], Observer]] = ()) -> Outcome:
    """Train one trial in this process, from where its run stands, and record the outcome."""
    path = folder / trial.run_name
    try:
        run = Run.open(path) if path.exists() else _new(folder, trial)
        started = bool(run.steps())
        experiment = run.load(Experiment) if started else trial.experiment
        result = train(experiment, run, [make() for make in observers], resume=started)
        if result.interrupted:
            raise KeyboardInterrupt
        loss = math.inf if result.validation_loss is None else result.validation_loss
        outcome = Outcome(path, loss, result.step, result.tokens, result.seconds)
    except Diverged as problem:
        outcome = Outcome(path, math.inf, problem.step, 0, 0.0, f"diverged at step {problem.step}")
    record = outcome._asdict() | {"loss": outcome.loss if math.isfinite(outcome.loss) else None}
    del record["path"]
    replace_files(folder / RESULTS, {f"{trial.run_name}.json": json.dumps(record)})
    return outcome


def _new(folder: Path, trial: Trial) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder; choose another with --out FOLDER")
    return Run.create(folder, trial.run_name, to_toml(trial.experiment), environment())


def gpus(experiments: Sequence[Experiment]) -> list[str]:
    """The GPUs that workers share out; none if there is only one, or if experiments name theirs."""
    import torch

    count = torch.cuda.device_count()
    if count < 2 or any(one.train.device not in ("auto", "cuda") for one in experiments):
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(number) for number in range(count)]


def _prepare_worker(threads: int, files: Sequence[str], free: Sequence[str], started: Synchronized[int]) -> None:
    import torch

    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if free:  # before CUDA starts, which then sees this GPU alone
        os.environ["CUDA_VISIBLE_DEVICES"] = free[number % len(free)]
    torch.set_num_threads(threads)
    load_declared(files)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Save and end when the process that started this one is gone, which an executor's workers would outlive."""
    parent = parent_process()
    assert parent is not None  # this runs in a worker
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a training saves a checkpoint
    time.sleep(GRACE)
    os._exit(1)
