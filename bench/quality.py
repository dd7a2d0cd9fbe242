"""Quality at equal time: `python -m bench.quality --seconds 180 --seeds 3`.

The recipes and a GPT-2-style baseline (nanoGPT's documented CPU setting: 4 layers, width 128, context 64, batch 12,
AdamW at 1e-3 with a cosine down to a tenth) train on Shakespeare's plays for the same number of seconds on the same
cores, seed by seed in turn, each in a process of its own. What counts is the mean loss over all of the held-out tenth,
in nats per character. The baseline runs through our own loop with GPT-2's parts, which `bench.training` shows to be as
fast as a plain implementation of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.interleave import LATEST, Entry, save

BASELINE = "GPT-2 style"


def baseline() -> Any:
    """nanoGPT's CPU setting; its schedule ends where the time does."""
    from regard.data import TextConfig
    from regard.models import GPTConfig
    from regard.nn.feedforward import GELUConfig
    from regard.nn.norm import LayerNormConfig
    from regard.nn.positions.position import LearnedPositionConfig
    from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

    return Experiment(
        model=GPTConfig(
            context=64,
            layers=4,
            heads=4,
            width=128,
            qk_norm=False,
            zero_init=False,
            position=LearnedPositionConfig(),
            norm=LayerNormConfig(bias=False),
            feedforward=GELUConfig(),
        ),
        data=TextConfig(batch=12),
        train=TrainConfig(
            optimizer=AdamWConfig(lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
            schedule=CosineScheduleConfig(warmup=100, final=0.1),
        ),
    )


def train_one(name: str, seed: int, seconds: float, data: str | None, threads: int) -> dict[str, Any]:
    """Train one contender in this process."""
    import torch

    from regard.config import to_toml
    from regard.recipes import get
    from regard.runs import Run, environment
    from regard.train import train

    torch.set_num_threads(threads)
    experiment: Any = baseline() if name == BASELINE else get(name)
    experiment = replace(
        experiment,
        seed=seed,
        data=replace(experiment.data, path=data),
        train=replace(
            experiment.train, seconds=seconds, evaluate_every=None, evaluate_share=None, save_every=None, device="cpu"
        ),
    ).checked()
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder), "run", to_toml(experiment), environment())
        began = time.perf_counter()
        result = train(experiment, run)
    return {
        "name": name,
        "seed": seed,
        "loss": result.validation_loss,
        "steps": result.step,
        "seconds": round(time.perf_counter() - began, 1),
    }


def in_a_process(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own, so that none inherits another's memory or caches."""
    command = [sys.executable, "-m", "bench.quality", "--one", name, "--seed", str(seed)]
    command += ["--seconds", str(chosen.seconds), "--threads", str(chosen.threads)]
    command += ["--data", chosen.data] if chosen.data else []
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipes", default="shakespeare,shakespeare-fast")
    parser.add_argument("--data", help="a text file instead of the plays")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=LATEST)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(train_one(chosen.one, chosen.seed, chosen.seconds, chosen.data, chosen.threads)))
        return
    names = [BASELINE, *chosen.recipes.split(",")]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(1, chosen.seeds + 1):
        for name in names:
            result = in_a_process(name, seed, chosen)
            results[name].append(result)
            print(f"{name:20} seed {seed}: {result['loss']:.4f} after {result['steps']:,} steps, {result['seconds']} s")
    report(results, chosen)


def report(results: dict[str, list[dict[str, Any]]], chosen: argparse.Namespace) -> None:
    """Means and differences, and the lines of `latest.json`: losses, so a ratio below 1 is ours being better."""
    losses = {name: [result["loss"] for result in those] for name, those in results.items()}
    base = statistics.fmean(losses[BASELINE])
    entries = []
    for name, values in losses.items():
        mean = statistics.fmean(values)
        print(f"{name:20} mean {mean:.4f} ({min(values):.4f} - {max(values):.4f}), {mean - base:+.4f} to the baseline")
        if name != BASELINE:
            ratios = [ours / theirs for ours, theirs in zip(values, losses[BASELINE], strict=True)]
            setting = f"{name}, {chosen.seconds:g} s on {chosen.threads} cores, nats per character"
            entry = Entry("quality", setting, mean, base, BASELINE, mean / base, min(ratios), max(ratios))
            entries.append(entry)
    save(entries, chosen.out)


if __name__ == "__main__":
    main()
