"""Training that waits for data, and memory that runs out."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from regard.data import TextBatch
from regard.train.device import memory
from regard.train.engine import Engine
from run_faults.kit import Case, Fault, Sabotage, Seen, altered, changed, gpt, training

ROOM = 240 * 2**20  # bytes that a process may have on top of what it has


def slow(seconds: float) -> Sabotage:
    """Every batch is waited for."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        time.sleep(seconds)
        return batch

    return changed(change)


def waited_for_every_batch(seen: Seen) -> bool:
    """Even the quickest of five batches takes as long as the loader sleeps."""
    times = []
    for number in range(5):
        began = time.perf_counter()
        seen.batch(number)
        times.append(time.perf_counter() - began)
    return min(times) >= 0.05


def full_memory(folder: Path) -> Case:
    experiment = training(folder, train={"steps": 20}, batch=64)
    return Case(experiment, limit=round(memory(torch.device("cpu")) * 1.03))


def stalled(every: int, seconds: float) -> Sabotage:
    """Batches come in files of `every`, and a file takes long to open."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch

        def batch(step: int, **named: Any) -> Any:
            if step % every == 0:
                time.sleep(seconds)
            return plain(step, **named)

        engine.data.batch = batch

    return sabotage


def waited_for_files(seen: Seen) -> bool:
    """One batch of eight takes far longer than the others do."""
    times = []
    for number in range(8, 16):
        began = time.perf_counter()
        seen.batch(number)
        times.append(time.perf_counter() - began)
    return times[0] > 0.4 > 4 * statistics.median(times[1:])


def hoarding(engine: Engine) -> None:
    """Hooks left over from debugging keep the output of every module in a list that is never emptied."""
    kept: list[Any] = []
    for module in engine.model.modules():
        module.register_forward_hook(lambda module, given, out: kept.append(out))


def leaking(folder: Path) -> Case:
    experiment = training(folder, train={"steps": 40}, batch=32)
    return Case(experiment, hoarding, limit=memory(torch.device("cpu")) + ROOM)


def hoarded(seen: Seen) -> bool:
    """Memory has grown by more than the process may have, a good part of it in the second half of the run."""
    of_steps = [record["memory"] for record in seen.ended.run.metrics() if "memory" in record]
    grown = of_steps[-1] - of_steps[len(of_steps) // 2]
    return grown > ROOM / 4 and memory(torch.device("cpu")) > (seen.case.limit or float("inf"))


FAULTS: list[Fault] = [
    Fault(
        "slow loader",
        "starvation",
        "",
        "Most of the time is spent waiting for batches.",
        altered(slow(0.06), gpt(layers=1, width=16), steps=25),
        shows=waited_for_every_batch,
    ),
    Fault(
        "stalls between files",
        "starvation",
        "",
        "Every eighth batch is waited for, for longer than the eight of them take.",
        altered(stalled(8, 0.5), gpt(layers=1, width=16), steps=40),
        shows=waited_for_files,
        listed=False,
    ),
    Fault(
        "memory almost full",
        "memory",
        "",
        "The process has nearly all of the memory that it may have; half the batch would do.",
        full_memory,
        shows=lambda seen: memory(torch.device("cpu")) > 0.95 * (seen.case.limit or float("inf")),
    ),
    Fault(
        "outputs hoarded",
        "memory",
        "",
        "Hooks keep what every module gives, so that memory grows from step to step until none is left.",
        leaking,
        shows=hoarded,
        listed=False,
    ),
]
