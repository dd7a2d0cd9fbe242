"""Plans against measured steps on a CPU: a law of time is fitted to 5 experiments and predicts 25 others; their memory.

    python -m bench.plan [--seed 1] [--out FILE.json]

Each experiment runs in a process of its own, with the clock of the process and its peak memory beyond what is there
before the first step.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FITTED, PREDICTED = 5, 25
CHOICES: dict[str, list[Any]] = {
    "--model.layers": [2, 3, 4, 6, 8],
    "--model.width": [128, 192, 256, 384, 512],
    "--model.context": [64, 128, 256, 512],
    "--data.batch": [4, 8, 16, 32],
    "--model.feedforward": ["relu2", "swiglu"],
    "--model.attention": ["softmax", "softmax", "s4d", "linear"],
    "--model.vocabulary": [256, 4096, 16384],
    "--train.accumulate": [1, 1, 2],
    "--train.checkpointing": ["false", "false", "true"],
    "--train.optimizer": ["adamw", "muon"],
}
RECIPES = ["shakespeare", "shakespeare", "shakespeare-mingru", "shakespeare-conv", "shakespeare-lstm"]
FLOPS = 1e11  # of a step at most


def experiments(seed: int) -> list[list[str]]:
    """Random recipes and options that are valid and not too long."""
    from regard.commands.train import read_experiment
    from regard.errors import UserError
    from regard.plan import trace

    draw, found = random.Random(seed), list[list[str]]()
    for _ in range(1000):
        if len(found) == FITTED + PREDICTED:
            break
        recipe = draw.choice(RECIPES)
        keys = {key: draw.choice(values) for key, values in CHOICES.items()}
        if recipe != "shakespeare":
            for name in ("feedforward", "attention"):
                del keys[f"--model.{name}"]
        try:
            experiment = read_experiment(recipe, [f"{key}={value}" for key, value in keys.items()])
            flops = trace(experiment).micro_batch.flops * experiment.train.accumulate
        except UserError:
            continue
        if flops <= FLOPS:
            found.append([recipe, *(f"{key}={value}" for key, value in keys.items())])
    return found


def child(arguments: list[str]) -> None:
    """Measure one experiment, and print its work, seconds and memory."""
    import torch

    from regard.commands.train import read_experiment
    from regard.plan import measure, plan, random_batch

    recipe, *options = arguments
    experiment = read_experiment(recipe, options)
    planned = plan(experiment, fixes=False)
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))  # the libraries of matrix products are loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = measure(experiment, random_batch(experiment), torch.device("cpu"), time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    record = {"work": found.work, "seconds": found.seconds, "memory": peak * 1024, "planned": planned.memory.total}
    print(json.dumps(record))


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--out", type=Path)
    reader.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.child:
        child(options.child)
        return
    from regard.plan import MeasuredStep, SpeedLaw, Work

    records = []
    for arguments in experiments(options.seed):
        command = [sys.executable, "-m", "bench.plan", "--child", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(" ".join(arguments), done.stderr.strip().splitlines()[-1:], file=sys.stderr)
            continue
        print(f"{len(records) + 1}: {' '.join(arguments)}", file=sys.stderr, flush=True)
        records.append({"arguments": arguments, **json.loads(done.stdout.splitlines()[-1])})
    if options.out:
        options.out.write_text(json.dumps(records, indent=1))
    measured = [MeasuredStep(Work(*record["work"]), record["seconds"]) for record in records]
    law = SpeedLaw.fit(measured[:FITTED])
    errors = [law.seconds(one.work) / one.seconds - 1 for one in measured]
    for record, error in zip(records, errors, strict=True):
        record |= {"error": error, "memory_error": record["planned"] / max(record["memory"], 1) - 1}
        line = f"{record['seconds'] * 1e3:8.1f} ms {error:+6.0%}  {record['memory'] / 1e6:8.1f} MB "
        print(f"{line}{record['memory_error']:+6.0%}  {' '.join(record['arguments'])}")
    left = [abs(error) for error in errors[FITTED:]]
    large = [abs(record["memory_error"]) for record in records if record["memory"] > 1e8]
    print(f"time: median error {statistics.median(left):.1%} of {len(left)} experiments that were not fitted")
    print(f"memory: median error {statistics.median(large):.1%}, worst {max(large):.1%} of {len(large)} above 100 MB")


if __name__ == "__main__":
    main()
