"""CIFAR-10 on a GPU: short trainings that compare settings, and the long one (docs/results/images.md).

    python -m bench.carry keep carry/cifar10-1      on a machine without a network: half of the images
    python -m bench.cifar trials                    four settings on these 30,000; the best is noted
    python -m bench.carry keep carry/cifar10-2      the other half
    python -m bench.cifar final                     the recipe with that choice, and its test

The trials choose on held-out images of the training part only. Results are lines of JSON on the standard output.
Further options are those of `regard train`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.carry import FOLDER, read
from regard.config import override
from regard.data import ImagesConfig
from regard.data.images.arrays import ImageSet, LabeledImages, pack, unpack
from regard.recipes import recipe
from regard.runs import Run
from regard.train import fit
from regard.train.experiment import Experiment

#: The settings that the trials compare.
TRIALS: dict[str, tuple[str, ...]] = {
    "muon": (),
    "muon, half the rate": ("--train.optimizer.lr=0.01", "--train.optimizer.rest_lr=1e-3"),
    "adamw": ("--train.optimizer=adamw", "--train.optimizer.lr=1e-3", "--train.optimizer.weight_decay=0.1"),
    "patches of 2": ("--model.patch=2", "--model.layers=7", "--model.width=256", "--model.heads=4"),
}


@dataclass(frozen=True)
class CarriedConfig(ImagesConfig, kind="carried"):
    """Images in a file that ``pack`` wrote."""

    def read(self, cache: Path | None = None) -> ImageSet:
        assert self.path is not None
        return unpack(Path(self.path))


def say(**record: object) -> None:
    """One line of JSON."""
    print(json.dumps(record), flush=True)


def trained(name: str, experiment: Experiment, folder: Path, **note: object) -> tuple[Run, float]:
    """Train, and print speed and validation accuracy."""
    began = time.perf_counter()
    result = fit(experiment, None, runs=folder)
    wall, run = time.perf_counter() - began, Run.open(result.path)
    accuracies = [r["validation_accuracy"] for r in run.metrics() if "validation_accuracy" in r]
    images = result.step * experiment.data.batch
    say(
        name=name,
        wall=round(wall, 1),
        training_seconds=round(result.seconds, 1),
        steps=result.step,
        steps_per_second=round(result.step / result.seconds, 2),
        images_per_second=round(images / result.seconds),
        validation_accuracy=accuracies,
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **note,
    )
    return run, accuracies[-1]


def trials(chosen: argparse.Namespace) -> None:
    """Each setting for the same time on the first part; notes the best one."""
    part, about = read(FOLDER / "cifar10-1")
    path = chosen.folder / "first.safetensors"
    path.write_bytes(pack(ImageSet(part, LabeledImages.none((3, 32, 32)), tuple(about["labels"]))))
    data = ["--data=carried", f"--data.path={path}", "--data.validation=0.1", "--data.test=0", "--data.crop=4"]
    data += ["--data.flip=true", "--data.affine=0.3", "--data.color=0.2", "--data.mixup=0.2", "--data.cutmix=0.4"]
    found = {}
    for name, options in TRIALS.items():
        given = [*data, "--data.batch=1024", f"--train.seconds={chosen.seconds}"]
        experiment = override(override(override(recipe("cifar10"), given), options), chosen.options)
        try:
            _, found[name] = trained(name, experiment, chosen.folder, options=options)
        except Exception as error:
            traceback.print_exc()
            say(name=name, error=repr(error))
    best = max(found, key=found.__getitem__)
    (chosen.folder / "best.json").write_text(json.dumps(TRIALS[best]))
    say(best=best)


def final(chosen: argparse.Namespace) -> None:
    """The recipe with the choice of the trials, and its accuracy on the test part."""
    from regard.cli import main

    best = chosen.folder / "best.json"
    options = json.loads(best.read_text()) if best.is_file() else []
    given = [*options, f"--train.seconds={chosen.seconds}"]
    experiment = override(override(recipe("cifar10"), given), chosen.options)
    run, _ = trained("cifar10", experiment, chosen.folder, options=[*given, *chosen.options])
    if chosen.out:
        for name in ("config.toml", "metrics.jsonl", "environment.json"):
            with contextlib.suppress(OSError):
                shutil.copy(run.path / name, chosen.out / name)
    sys.stdout.flush()
    main(["evaluate", str(run.path), "--part", "test", "--json"])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("trials", "final"))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/cifar"), help="for runs, and the choice")
    parser.add_argument("--seconds", type=float, help="of each training; default: 75 for trials, 490 for the final one")
    parser.add_argument("--out", type=Path, help="a folder for the run's config and records")
    chosen, chosen.options = parser.parse_known_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    chosen.seconds = chosen.seconds or {"trials": 75.0, "final": 490.0}[chosen.action]
    {"trials": trials, "final": final}[chosen.action](chosen)


if __name__ == "__main__":
    main()
