"""Image classification on two cores, beside a CNN and an LSTM of about as many parameters (docs/results/images.md).

    python -m bench.images digits digits-cnn         stratified 5-fold cross-validation of each
    python -m bench.images mnist-6 mnist-15 ...      one training each, and its test; several names: one after the other
    python -m bench.images mnist-6 --model.width=64  further options are those of `regard train`

Prints a line of JSON for each. The time of a training is its `--train.seconds` with the preparation; the test is not
counted. On a machine that is busy, give `--train.seconds=none --train.steps=N` and read the CPU time.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import dataclass, replace
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
#: Baselines with as many parameters as the Vision Transformer of the recipe, within 3 %.
BASELINES: dict[str, dict[str, tuple[str, ...]]] = {
    "digits": {
        "cnn": ("--model=image-cnn", "--model.patch=2", "--model.width=53", "--model.layers=4"),
        "lstm": ("--model=image-lstm", "--model.width=104", "--model.layers=3"),
    },
    "mnist": {
        "cnn": ("--model=image-cnn", "--model.width=64", "--model.layers=6"),
        "lstm": ("--model=image-lstm", "--model.width=156", "--model.layers=3"),
    },
    "fashion-mnist": {
        "cnn": ("--model=image-cnn", "--model.width=43", "--model.layers=6"),
        "lstm": ("--model=image-lstm", "--model.width=104", "--model.layers=3"),
    },
}
#: Recipe and options of each training.
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    name + suffix: (base, (*options, *model))
    for name, base, options in (
        ("digits", "digits", ()),
        ("mnist-6", "mnist", ("--train.seconds=360",)),
        ("mnist-15", "mnist", ("--train.seconds=900",)),
        ("fashion-15", "fashion-mnist", ("--train.seconds=900",)),
    )
    for suffix, model in (("", ()), *((f"-{kind}", own) for kind, own in BASELINES[base].items()))
}


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
    base, own = TRAININGS[name]
    experiment = override(override(recipe(base), own), options)
    if base != "digits":
        return say(**trained(name, experiment, folder))
    found = []
    for fold in range(FOLDS):
        data = FoldConfig(**vars(experiment.data), fold=fold)
        found.append(trained(name, replace(experiment, data=data), folder))
        say(fold=fold, **found[-1])
    mean = float(np.mean([one["test_accuracy"] for one in found]))
    longest = {f"longest_{clock}": max(one[clock] for one in found) for clock in ("wall", "cpu")}
    say(name=f"{name}, mean of the folds", test_accuracy=round(mean, 4), **longest)


def say(**record: object) -> None:
    """One line of JSON."""
    print(json.dumps({**record, "machine": platform.processor() or platform.machine()}), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=tuple(TRAININGS))
    parser.add_argument("--threads", type=int, default=2)
    chosen, options = parser.parse_known_args()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.names:
            run_named(name, ["--train.device=cpu", *options], Path(folder))


if __name__ == "__main__":
    main()
