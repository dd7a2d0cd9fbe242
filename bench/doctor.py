"""The doctor's cost and accuracy.

`cost` trains the same recipe with and without a doctor at the same time, in turns of a few steps so that both meet the
same load, and compares their CPU times. `faults` and `healthy` train the tables of tests/doctor: every fault must be
named, no healthy run may raise an alarm.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Semaphore

import torch

from bench.interleave import add_rounds, median_interval
from regard.commands.train import read_experiment
from regard.config import to_toml
from regard.doctor import Doctor
from regard.runs import Run
from regard.train import Experiment, Observer, TrainingStep, train

TABLES = Path(__file__).parent.parent / "tests" / "doctor"
RECIPES = ("shakespeare-small --train.steps 600", "shakespeare --train.steps 300 --data.limit 400000")
TURN, LAST = 5, 1000  # steps of a turn; turns that are left to the other one at the end


def run(experiment: Experiment, folder: Path, *observers: Observer) -> float:
    """CPU seconds of this thread for one training."""
    began = time.thread_time()
    train(experiment, Run.create(folder, None, to_toml(experiment), {}), observers)
    return time.thread_time() - began


class InTurn(Observer):
    """Interrupts a training after every few steps and batches of an evaluation, until the other one gives way."""

    def __init__(self, own: Semaphore, other: Semaphore):
        self._own, self._other, self._calls = own, other, 0

    def _give_way(self) -> None:
        self._calls += 1
        if self._calls % TURN == 0:
            self._other.release()
            self._own.acquire()

    def stepped(self, step: TrainingStep) -> None:
        self._give_way()

    def evaluating(self, step: int, done: float | None) -> None:
        self._give_way()


def pair(experiment: Experiment, folder: Path, doctor: Doctor, first: bool) -> tuple[float, float]:
    """CPU seconds with and without the doctor; ``first``: the training with it begins."""
    gates = Semaphore(int(first)), Semaphore(int(not first))

    def one(own: Semaphore, other: Semaphore, *observers: Observer) -> float:
        own.acquire()
        try:
            return run(experiment, folder, *observers, InTurn(own, other))
        finally:
            other.release(LAST)

    with ThreadPoolExecutor(2) as threads:
        watched = threads.submit(one, gates[0], gates[1], doctor)
        alone = threads.submit(one, gates[1], gates[0])
        return watched.result(), alone.result()


def cost(folder: Path, rounds: int) -> None:
    """The median over rounds of (with - without) / without, and the doctor's own clock."""
    for line in RECIPES:
        name, *overrides = line.split()
        often = ["--train.evaluate_every", "none", "--train.save_every", "none", "--train.device", "cpu"]
        experiment = read_experiment(name, [*overrides, *often], 1)
        short = replace(experiment, train=replace(experiment.train, steps=10))  # imports, and text that is tokenized
        run(short, folder, Doctor(out=io.StringIO()))
        ratios, own = [], []
        for number in range(rounds):
            doctor = Doctor(out=io.StringIO())
            watched, alone = pair(experiment, folder, doctor, number % 2 == 0)
            ratios.append(watched / alone - 1)
            own.append(doctor.cost / alone)
            print(f"{line}: {ratios[-1]:+.2%}, by its own clock {own[-1]:.2%}", flush=True)
        middle, low, high = median_interval(ratios)
        print(f"{line}: {middle:+.2%} ({low:+.2%} to {high:+.2%}), by its own clock {max(own):.2%} at most", flush=True)


def faults(folder: Path, wanted: list[str]) -> None:
    """Each fault of the table whose name contains one of ``wanted``, with all findings."""
    from run_faults import FAULTS
    from run_faults.kit import trained

    named: dict[bool, list[bool]] = {True: [], False: []}
    for fault in FAULTS:
        if wanted and not any(word in fault.name for word in wanted):
            continue
        case = fault.make(folder)
        doctor = Doctor(case.limit, io.StringIO())
        trained(case, folder, [doctor])
        found = list(doctor.findings.values())
        hit = any(one.kind == fault.kind and re.search(fault.where, one.where) for one in found)
        named[fault.listed].append(hit)
        findings = ", ".join(f"{one.kind} in {one.where}" for one in found)
        print(f"{'named ' if hit else 'MISSED'} {fault.name}: {findings}", flush=True)
    for listed, when in ((True, "listed before any check was written"), (False, "written later")):
        print(f"{sum(named[listed])} of {len(named[listed])} faults {when} are named")


def healthy(folder: Path) -> None:
    """Each of the healthy runs."""
    from healthy_runs import HEALTHY

    alarms = 0
    for line in HEALTHY:
        name, _, seed, *overrides = line.split()
        doctor = Doctor(out=io.StringIO())
        run(read_experiment(name, overrides, int(seed)), folder, doctor)
        found = "; ".join(one.line() for one in doctor.findings.values())
        alarms += bool(found)
        print(f"{'ALARM' if found else 'quiet'} {name}, seed {seed} {found}", flush=True)
    print(f"{alarms} of {len(HEALTHY)} healthy runs alarmed")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("cost", "faults", "healthy"))
    parser.add_argument("--only", nargs="+", default=[], help="faults whose name contains one of these")
    add_rounds(parser, 6)
    chosen = parser.parse_args(arguments)
    sys.path.insert(0, str(TABLES))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for part in chosen.parts:
            if part == "cost":
                cost(Path(scratch), chosen.rounds)
            elif part == "faults":
                faults(Path(scratch), chosen.only)
            else:
                healthy(Path(scratch))


if __name__ == "__main__":
    main()
