"""The doctor's cost and accuracy: python -m bench.doctor [cost] [faults [NAME ...]] [healthy]

`cost` trains the same recipe in turns with and without a doctor, and compares CPU times of the same turn. `faults` and
`healthy` train the tables of tests/doctor: every fault must be named, no healthy run may raise an alarm.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.interleave import median_interval
from regard.commands.train import read_experiment
from regard.config import to_toml
from regard.doctor import Doctor
from regard.runs import Run
from regard.train import Experiment, train

TABLES = Path(__file__).parent.parent / "tests" / "doctor"
ROUNDS = 6
RECIPES = ("shakespeare-small --train.steps 600", "shakespeare --train.steps 300 --data.limit 400000")


def run(experiment: Experiment, folder: Path, doctor: Doctor | None) -> float:
    """CPU seconds of one training."""
    began = time.process_time()
    train(experiment, Run.create(folder, None, to_toml(experiment), {}), [doctor] if doctor else [])
    return time.process_time() - began


def cost(folder: Path, rounds: int = ROUNDS) -> None:
    """The median over turns of (with - without) / without, and the doctor's own clock."""
    for line in RECIPES:
        name, *overrides = line.split()
        often = ["--train.evaluate_every", "none", "--train.save_every", "none", "--train.device", "cpu"]
        experiment = read_experiment(name, [*overrides, *often], 1)
        ratios, own = [], []
        for number in range(rounds):
            doctors = [Doctor(out=io.StringIO()), None]
            seconds = {}
            for doctor in doctors if number % 2 else reversed(doctors):
                seconds[doctor] = run(experiment, folder, doctor)
            assert doctors[0] is not None
            ratios.append(seconds[doctors[0]] / seconds[None] - 1)
            own.append(doctors[0].cost / seconds[doctors[0]])
        middle, low, high = median_interval(ratios)
        print(f"{line}: {middle:+.2%} ({low:+.2%} to {high:+.2%}), by its own clock {max(own):.2%} at most")


def faults(folder: Path) -> None:
    """Each fault of the table, with all findings; arguments after `faults` select faults by a part of their name."""
    from run_faults import FAULTS
    from run_faults.kit import trained

    wanted = [word for word in sys.argv[1:] if word not in PARTS]
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


PARTS = {"cost": cost, "faults": faults, "healthy": healthy}

if __name__ == "__main__":
    sys.path.insert(0, str(TABLES))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for part in [word for word in sys.argv[1:] if word in PARTS] or PARTS:
            PARTS[part](Path(scratch))
