"""Signals of several lengths as arrays, each with its targets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Values = NDArray[np.float32] | NDArray[np.int16]
SCALE = np.float32(2**15)  # of 16-bit samples


class Signals(NamedTuple):
    """Signals of one part, and what is learned about each."""

    values: tuple[Values, ...]  # each [T, M]: T points in time, M channels; int16: in units of 1 / 32,768
    targets: tuple[NDArray[np.int64], ...]  # each [L]: the class, L = 1, or the numbers of the characters of its text

    def pick(self, numbers: Iterable[int]) -> Signals:
        """The signals with these numbers."""
        chosen = [int(number) for number in numbers]
        return Signals(tuple(self.values[n] for n in chosen), tuple(self.targets[n] for n in chosen))

    @classmethod
    def of(cls, values: Iterable[Values], classes: Iterable[int]) -> Signals:
        """Signals with one class each."""
        return cls(tuple(values), tuple(np.array([number], np.int64) for number in classes))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The points in time of each signal."""
        return np.array([len(one) for one in self.values], np.int64)


class SignalSet(NamedTuple):
    """The signals of a source: those to train on, those of its test part, and the names of the classes."""

    train: Signals
    test: Signals  # empty: the source has no test part
    labels: tuple[str, ...]


Parts = tuple[Signals, Signals, Signals]  # train, validation, test


def to_floats(values: Values) -> Floats:
    """Values as numbers; 16-bit samples from -1 to 1."""
    return values.astype(np.float32) / SCALE if values.dtype == np.int16 else values.astype(np.float32, copy=False)


def padded(rows: list[NDArray], length: int, fill: float) -> NDArray:
    """Rows [T, ...] of several lengths as one array [B, length, ...], filled up behind each."""
    first = rows[0]
    found = np.full((len(rows), length, *first.shape[1:]), fill, first.dtype)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found


def fingerprint(parts: Parts, labels: tuple[str, ...]) -> str:
    """The SHA-256 of the content of all parts."""
    digest = hashlib.sha256(repr(labels).encode())
    for part in parts:
        for arrays in part:
            for array in arrays:
                digest.update(repr(array.shape).encode())
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
