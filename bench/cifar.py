"""CIFAR-10 on a machine with a GPU and without a network: the images travel with the working tree, in two parts.

    python -m bench.cifar pack                       writes carry/cifar10-1 and carry/cifar10-2 (50 MiB each)
    python -m bench.cifar trials carry/cifar10-1     there: short trainings on its 30,000 images; the best is noted
    python -m bench.cifar final carry/cifar10-2      there, right after: the recipe with that choice, and its test

The parts are kept in `--folder` between the calls. Both together give the source's file to the byte, which is verified
by its SHA-256 as after any download. The trials choose on held-out images of the training part only. Results are lines
of JSON on the standard output. Further options are those of `regard train`.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import json
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from regard.config import override
from regard.data import ImagesConfig
from regard.data.images.arrays import ImageSet, LabeledImages, Pixels, pack, unpack
from regard.data.origins.cache import cache_folder
from regard.data.sources import find_source
from regard.recipes import recipe
from regard.runs import Run
from regard.train import fit
from regard.train.experiment import Experiment

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = ("cifar10-1", "cifar10-2")
SPLIT = 30_000  # images in the first part
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


def residuals(images: Pixels) -> list[Pixels]:
    """Green, red - green and blue - green, each minus a prediction from the pixels before (LOCO-I's median)."""
    planes = images.astype(np.int16).transpose(1, 0, 2, 3)
    found = []
    for plane in (planes[1], planes[0] - planes[1], planes[2] - planes[1]):
        edge = np.pad(plane, ((0, 0), (1, 0), (1, 0)))
        found.append(
            ((plane - predicted(edge[:, 1:, :-1], edge[:, :-1, 1:], edge[:, :-1, :-1])) & 255).astype(np.uint8)
        )
    return found


def predicted(left: NDArray[Any], above: NDArray[Any], corner: NDArray[Any]) -> NDArray[Any]:
    """The median of left, above and left + above - corner."""
    return np.clip(left + above - corner, np.minimum(left, above), np.maximum(left, above))


def restored(found: list[Pixels]) -> Pixels:
    """The images of ``residuals``."""
    planes = []
    for number, residual in enumerate(found):
        rows, columns = residual.shape[1:]
        edge = np.zeros((rows + 1, columns + 1, len(residual)), np.int16)
        given = np.ascontiguousarray(residual.transpose(1, 2, 0)).astype(np.int16)
        # Differences of two colors have 511 values and travel modulo 256; green says which of the two it is.
        green = None if number == 0 else planes[0].transpose(1, 2, 0)
        for row in range(rows):
            for column in range(columns):
                guess = predicted(edge[row + 1, column], edge[row, column + 1], edge[row, column])
                value = (guess + given[row, column]) & 255
                if green is not None:
                    value = ((green[row, column] + value) & 255) - green[row, column]
                edge[row + 1, column + 1] = value
        planes.append(edge[1:, 1:].transpose(2, 0, 1).copy())
    green, red, blue = planes[0], planes[1] + planes[0], planes[2] + planes[0]
    return np.stack((red, green, blue), 1).astype(np.uint8)


def write_parts(folder: Path) -> None:
    """The two parts of the source's file."""
    given = unpack(find_source("cifar10").fetch())
    images = np.concatenate((given.train.images, given.test.images))
    labels = np.concatenate((given.train.labels, given.test.labels))
    folder.mkdir(exist_ok=True)
    for name, part in zip(PARTS, (slice(None, SPLIT), slice(SPLIT, None)), strict=True):
        planes = residuals(images[part])
        assert np.array_equal(restored(planes), images[part])
        arrays = {str(n): np.frombuffer(bz2.compress(p.tobytes()), np.uint8) for n, p in enumerate(planes)}
        save_file({**arrays, "labels": labels[part].astype(np.uint8)}, folder / name)
        print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")


def read_part(path: Path) -> LabeledImages:
    """The images of a part."""
    arrays = load_file(path)
    planes = [np.frombuffer(bz2.decompress(arrays[str(n)].tobytes()), np.uint8).reshape(-1, 32, 32) for n in range(3)]
    return LabeledImages(restored(planes), arrays["labels"].astype(np.int64))


def assemble(folder: Path) -> None:
    """The source's file in the cache, from both parts; verified."""
    source = find_source("cifar10")
    images, labels = (np.concatenate(both) for both in zip(*(read_part(folder / name) for name in PARTS), strict=True))
    train, test = (LabeledImages(images[part], labels[part]) for part in (slice(50_000), slice(50_000, None)))
    path = source.path(cache_folder())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(ImageSet(train, test, NAMES)))
    if (fault := source.fault()) is not None:
        raise SystemExit(fault)


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
    part = read_part(chosen.folder / PARTS[0])
    path = chosen.folder / "first.safetensors"
    path.write_bytes(pack(ImageSet(part, LabeledImages.none((3, 32, 32)), NAMES)))
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

    assemble(chosen.folder)
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
    parser.add_argument("action", choices=("pack", "trials", "final"))
    parser.add_argument("part", nargs="?", type=Path, help="the part that was carried")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/cifar"), help="kept between the calls")
    parser.add_argument("--seconds", type=float, help="of each training; default: 75 for trials, 500 for the final one")
    parser.add_argument("--out", type=Path, help="a folder for the run's config and records")
    chosen, chosen.options = parser.parse_known_args()
    if chosen.action == "pack":
        return write_parts(Path("carry"))
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.part:
        shutil.copy(chosen.part, chosen.folder / chosen.part.name)
    chosen.seconds = chosen.seconds or {"trials": 75.0, "final": 500.0}[chosen.action]
    return {"trials": trials, "final": final}[chosen.action](chosen)


if __name__ == "__main__":
    main()
