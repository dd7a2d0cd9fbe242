"""How exactly budgets in seconds are kept beside other work: `python -m bench.budget`.

Ten times, `regard train shakespeare --train.seconds 60` runs in a process of its own while another process loads every
core, though not all the time: its load comes and goes at moments that a seed decides. The time is that of the whole
command, from the start of the process to its end, with start-up, calibration, evaluation, checkpoint and report.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path


def load(seed: int) -> None:
    """Load one core for a few seconds, pause, and so on."""
    chance = random.Random(seed)
    while True:
        until = time.perf_counter() + chance.uniform(2, 20)
        while time.perf_counter() < until:
            sum(number * number for number in range(10_000))
        time.sleep(chance.uniform(0, 5))


def run(recipe: str, seconds: float, folder: str, seed: int) -> tuple[float, int, str]:
    """The seconds that a command takes, the steps of its first plan, and what it printed."""
    command = [sys.executable, "-m", "regard", "train", recipe, "--train.seconds", str(seconds), "--name", "run"]
    command += ["--seed", str(seed), "--runs", folder]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    train = tomllib.loads(Path(folder, "run", "config.toml").read_text("utf-8"))["train"]
    return taken, train["plans"][0][1], done.stdout.splitlines()[0].partition(";")[0]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="shakespeare")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--idle", action="store_true", help="without the load")
    chosen = parser.parse_args()
    count = 0 if chosen.idle else len(os.sched_getaffinity(0))
    loads = [multiprocessing.Process(target=load, args=(number,), daemon=True) for number in range(count)]
    for process in loads:
        process.start()
    errors = []
    for seed in range(1, chosen.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            taken, first, said = run(chosen.recipe, chosen.seconds, folder, seed)
        errors.append(taken / chosen.seconds - 1)
        busy = os.getloadavg()[0]
        said = said.partition(": ")[2]
        print(f"{taken:6.1f} s ({errors[-1]:+.1%}), planned {first}, {said}; load average {busy:.1f}", flush=True)
    for limit in (0.03, 0.05):
        print(f"{sum(abs(error) <= limit for error in errors)} of {len(errors)} within {limit:.0%}")
    for process in loads:
        process.terminate()


if __name__ == "__main__":
    main()
