"""Images for a machine without a network: a source's file as smaller files, without loss, and back.

    python -m bench.carry pack cifar10 --parts 2     writes carry/cifar10-1 and carry/cifar10-2
    python -m bench.carry keep carry/cifar10-1       there: copies it to `--folder`; a source that is whole is assembled

A whole source becomes the file in the cache, to the byte, and is verified by its SHA-256 as after any download.
"""

from __future__ import annotations

import argparse
import bz2
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from regard.data.images.arrays import ImageSet, LabeledImages, Pixels, pack, unpack
from regard.data.origins.cache import cache_folder
from regard.data.sources import find_source

FOLDER = Path("/tmp/carried")


def residuals(images: Pixels) -> list[Pixels]:
    """Green, red - green and blue - green, each minus a prediction from the pixels before (LOCO-I's median)."""
    planes = images.astype(np.int16).transpose(1, 0, 2, 3)
    first = planes[len(planes) // 2]
    found = []
    for plane in (first, *(planes[n] - first for n in range(len(planes)) if n != len(planes) // 2)):
        edge = np.pad(plane, ((0, 0), (1, 0), (1, 0)))
        guess = predicted(edge[:, 1:, :-1], edge[:, :-1, 1:], edge[:, :-1, :-1])
        found.append(((plane - guess) & 255).astype(np.uint8))
    return found


def predicted(left: NDArray[Any], above: NDArray[Any], corner: NDArray[Any]) -> NDArray[Any]:
    """The median of left, above and left + above - corner."""
    return np.clip(left + above - corner, np.minimum(left, above), np.maximum(left, above))


def restored(found: list[Pixels]) -> Pixels:
    """The images of ``residuals``."""
    planes: list[NDArray[np.int16]] = []
    for residual in found:
        rows, columns = residual.shape[1:]
        edge = np.zeros((rows + 1, columns + 1, len(residual)), np.int16)
        given = np.ascontiguousarray(residual.transpose(1, 2, 0)).astype(np.int16)
        for row in range(rows):
            for column in range(columns):
                guess = predicted(edge[row + 1, column], edge[row, column + 1], edge[row, column])
                value = (guess + given[row, column]) & 255
                if planes:  # a difference of two colors travels modulo 256; the first color says which it is
                    first = planes[0][row, column]
                    value = ((first + value) & 255) - first
                edge[row + 1, column + 1] = value
        planes.append(edge[1:, 1:].copy())
    colors = [planes[0], *(planes[0] + plane for plane in planes[1:])]
    if len(colors) > 1:
        colors = [colors[1], colors[0], *colors[2:]]
    return np.stack(colors).transpose(3, 0, 1, 2).astype(np.uint8)


def write(name: str, count: int, folder: Path) -> None:
    """A source's images in ``count`` files."""
    given = unpack(find_source(name).fetch())
    images = np.concatenate((given.train.images, given.test.images))
    labels = np.concatenate((given.train.labels, given.test.labels)).astype(np.uint8)
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(labels)), count), 1):
        planes = residuals(images[part])
        assert np.array_equal(restored(planes), images[part])
        arrays = {str(n): np.frombuffer(bz2.compress(p.tobytes()), np.uint8) for n, p in enumerate(planes)}
        about = {"count": count, "train": len(given.train.labels), "labels": given.labels, "shape": images.shape[2:]}
        path = folder / f"{name}-{number}"
        save_file({**arrays, "labels": labels[part]}, path, {"about": json.dumps(about)})
        print(f"{path}: {path.stat().st_size:,} bytes")


def read(path: Path) -> tuple[LabeledImages, dict[str, Any]]:
    """The images of a part, and what it says about the source."""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        about = json.loads((file.metadata() or {})["about"])
    labels = arrays.pop("labels")
    planes = [bz2.decompress(arrays[str(n)].tobytes()) for n in range(len(arrays))]
    pixels = [np.frombuffer(plane, np.uint8).reshape(len(labels), *about["shape"]) for plane in planes]
    return LabeledImages(restored(pixels), labels.astype(np.int64)), about


def keep(paths: list[Path], folder: Path = FOLDER) -> None:
    """Copy parts to ``folder``; assemble each source of which there are all."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(path, folder / path.name)
    for name in dict.fromkeys(path.name.rpartition("-")[0] for path in paths):
        parts = sorted(folder.glob(f"{name}-*"))
        found = [read(part) for part in parts]
        about = found[0][1]
        if len(parts) < about["count"]:
            continue
        images, labels = (np.concatenate(both) for both in zip(*(part for part, _ in found), strict=True))
        whole, source = LabeledImages(images, labels), find_source(name)
        train, test = (whole.pick(part) for part in np.split(np.arange(len(labels)), [about["train"]]))
        given = pack(ImageSet(train, test, tuple(about["labels"])))
        path = source.path(cache_folder())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(given)
        if (fault := source.fault()) is not None:
            raise SystemExit(fault)
        print(f"{name} is whole")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "keep"))
    parser.add_argument("names", nargs="+", help="sources, or parts that were carried")
    parser.add_argument("--parts", type=int, default=1, help="files for each source")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where parts are kept between two calls")
    chosen = parser.parse_args()
    if chosen.action == "keep":
        return keep([Path(name) for name in chosen.names], chosen.folder)
    for name in chosen.names:
        write(name, chosen.parts, Path("carry"))


if __name__ == "__main__":
    main()
