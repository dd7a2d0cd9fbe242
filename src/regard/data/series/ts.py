"""The .ts files of the archives of time series classification: a line for each example, its class at the end.

After a header of lines with # and @, an example is `1.5,2,0.1:3,4,2.5:A`: the numbers of each dimension (channel) over
time, and the class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.records import read_text
from regard.data.signals.arrays import Signals, SignalSet
from regard.errors import UserError

TEST = "\n@test\n"  # in the file of a source, between its training and its test examples


def read_archive(path: Path) -> SignalSet:
    """The examples of a file, and those of its test part: in the same file, or NAME_TEST.ts beside NAME_TRAIN.ts."""
    text, _, other = read_text(path).replace("\r\n", "\n").partition(TEST)
    beside = path.with_name(path.name.replace("_TRAIN.ts", "_TEST.ts"))
    if not other and beside != path and beside.is_file():
        other = read_text(beside)
    labels, train = read_ts(text, path)
    names, test = read_ts(other, beside) if other else (labels, Signals.of([], []))
    if names != labels:
        raise UserError(f"{path} and its test part have different classes in `@classLabel`; correct one of them")
    if len({one.shape[1] for part in (train, test) for one in part.values}) > 1:
        raise UserError(f"{path} and its test part have different numbers of dimensions; correct one of them")
    return SignalSet(train, test, labels)


def read_ts(text: str, path: Path) -> tuple[tuple[str, ...], Signals]:
    """The names of the classes and the examples of a .ts file; ``path`` is for messages."""
    lines = [line.strip() for line in text.split("\n")]
    header = {name.lower(): rest for name, *rest in (line.split() for line in lines if line.startswith("@"))}
    kind, *labels = header.get("@classlabel", ["false"])
    if "@data" not in header or kind.lower() != "true" or len(labels) < 2:
        raise UserError(f"{path} is no .ts file with classes; one has lines such as `@classLabel true A B` and `@data`")
    values, classes = [], []
    for number, line in enumerate(lines, 1):
        if not line or line[0] in "#@":
            continue
        *dimensions, label = line.split(":")
        try:
            values.append(_numbers(dimensions))
            classes.append(labels.index(label.strip()))
        except ValueError as problem:
            raise UserError(f"line {number} of {path} is no example: {problem}; correct the file") from None
    if not values:
        raise UserError(f"{path} has no examples after `@data`")
    return tuple(labels), Signals.of(values, classes)


def _numbers(dimensions: list[str]) -> NDArray[np.float32]:
    """The numbers of an example [T, M]."""
    rows = [np.array(row.split(","), np.float32) for row in dimensions]
    if len({len(row) for row in rows}) != 1:
        raise ValueError("its dimensions have different lengths, or it has none")
    found = np.stack(rows, axis=1)
    if not np.isfinite(found).all():
        raise ValueError("a number is missing")
    return found
