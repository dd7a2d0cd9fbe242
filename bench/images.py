"""Image classification on two cores, beside a CNN and an LSTM of about as many parameters (docs/results/images.md).

    python -m bench.images digits                    stratified 5-fold cross-validation
    python -m bench.images mnist-6 mnist-15 ...      one training each, and its test; several names: one after the other
    python -m bench.images mnist-6 --model.width=64  further options are those of `regard train`
    python -m bench.images lanes                     all of them, several at the same time on two cores each

Prints a line of JSON for each. The time of a training is its `--train.seconds` with the preparation; the test is not
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import option, override
from regard.data import ImagesConfig
from regard.data.images.arrays import ImageSet
from regard.generate.load import load_trained
from regard.recipes import recipe
from regard.runs import Run
from regard.tasks import Measured
from regard.train import Experiment, fit
from regard.train.evaluate import measure
from regard.train.precision import Precision
from regard.train.pretrained import build_data

FOLDS = 5
SMALL = ("--model.patch=4", "--model.width=64")
CNN, LSTM = "--model=image-cnn", "--model=image-lstm"
#: Recipe and options of each training.
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mnist-6": ("mnist", ("--train.seconds=360",)),
    "mnist-6-patch-4": ("mnist", ("--train.seconds=360", *SMALL, "--data.affine=0.3")),
    "mnist-6-cnn": ("mnist", ("--train.seconds=360", CNN, "--model.width=64", "--model.layers=6")),
    "mnist-6-lstm": ("mnist", ("--train.seconds=360", LSTM, "--model.width=160", "--model.layers=3")),
    "mnist-15": ("mnist", ("--train.seconds=900", *SMALL, "--model.layers=6", "--data.affine=0.3")),
    "mnist-15-cnn": (
        "mnist",
        ("--train.seconds=900", CNN, "--model.width=52", "--model.layers=6", "--data.affine=0.3"),
    ),
    "fashion-15": ("fashion-mnist", ("--train.seconds=900",)),
    "fashion-15-cnn": ("fashion-mnist", ("--train.seconds=900", CNN, "--model.width=52", "--model.layers=6")),
}
#: What runs on each pair of cores, one after the other: 15 to 16 minutes.
LANES = (
    ("mnist-15",),
    ("fashion-15",),
    ("mnist-6", "mnist-6-lstm", "digits"),
    ("mnist-6-patch-4", "mnist-6-cnn"),
    ("mnist-15-cnn",),
    ("fashion-15-cnn",),
)


@dataclass(frozen=True)
class FoldConfig(ImagesConfig, kind="image-fold"):
    """A fold of a source: its own images are the test part, a tenth of the others are held out for validation."""

    fold: int = option(0, "the number of the fold")

    def read(self, cache: Path | None = None) -> ImageSet:
        given = super().read(cache)
        numbers, labels = np.arange(len(given.train.labels)), given.train.labels
        order = np.random.default_rng(0).permutation(numbers)
        own = np.concatenate([order[labels[order] == label][self.fold :: FOLDS] for label in np.unique(labels)])
        return ImageSet(given.train.pick(np.setdiff1d(numbers, own)), given.train.pick(own), given.labels)


def trained(name: str, experiment: Experiment, folder: Path) -> dict[str, Any]:
    """One training and its test."""
    began, cpu = time.perf_counter(), time.process_time()
    result = fit(experiment, None, runs=folder)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    run = Run.open(result.path)
    final = run.load(Experiment)
    model = load_trained(run, torch.device("cpu")).model
    data = build_data(final, run)
    task, cpu_only = final.task.build(), torch.device("cpu")
    assert isinstance(task, Measured)
    loss, measures = measure(model, task, data.test_batches(250), Precision("float32", cpu_only))
    validation = [record["validation_accuracy"] for record in run.metrics() if "validation_accuracy" in record]
    return {
        "name": name,
        "test_accuracy": round(measures["accuracy"], 4),
        "test_loss": round(loss.loss, 4),
        "validation_accuracy": [round(one, 4) for one in validation],
        "wall": round(wall, 1),
        "cpu": round(cpu, 1),
        "steps": result.step,
        "epochs": round(result.step / data.epoch(final.data.batch), 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "threads": torch.get_num_threads(),
    }


def run_named(name: str, options: list[str], folder: Path) -> None:
    """Print the results of one name."""
    if name != "digits":
        base, own = TRAININGS[name]
        return say(**trained(name, override(override(recipe(base), own), options), folder))
    found = []
    for fold in range(FOLDS):
        own = ["--data=image-fold", "--data.source=digits", f"--data.fold={fold}", "--data.batch=64"]
        found.append(trained(name, override(override(recipe("digits"), own), options), folder))
        say(fold=fold, **found[-1])
    mean = float(np.mean([one["test_accuracy"] for one in found]))
    say(name="digits, mean of the folds", test_accuracy=round(mean, 4), longest=max(one["wall"] for one in found))


def lanes(first: int, out: Path) -> None:
    """Every lane on cores of its own, from core ``first`` on; results go to ``out`` as they come."""

    def lane(number: int) -> None:
        cores = {first + 2 * number, first + 2 * number + 1}
        with out.open("a") as file:
            command = [sys.executable, "-m", "bench.images", *LANES[number]]
            pin = lambda: os.sched_setaffinity(0, cores)  # noqa: E731
            subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, preexec_fn=pin, check=False)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(len(LANES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def say(**record: object) -> None:
    """One line of JSON."""
    print(json.dumps({**record, "machine": platform.processor() or platform.machine()}), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=("digits", "lanes", *TRAININGS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="with lanes: the first core")
    parser.add_argument("--out", type=Path, default=Path("images.jsonl"), help="with lanes: the file of results")
    chosen, options = parser.parse_known_args()
    if chosen.names == ["lanes"]:
        return lanes(chosen.first, chosen.out)
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.names:
            run_named(name, ["--train.device=cpu", *options], Path(folder))


if __name__ == "__main__":
    main()
