"""Batches of signals with classes or texts. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, ArrayBatch
from regard.data.examples import WORDS, ExampleData, Numbers, Part, Uniform
from regard.data.signals.arrays import Floats, Parts, Signals, fingerprint, padded, to_floats
from regard.data.translation.length_buckets import bucket_tops
from regard.errors import UserError


class SignalChanges(NamedTuple):
    """How training signals are changed; the defaults change nothing."""

    crop: bool = False  # a signal longer than the longest to read begins anywhere, not in its middle
    speed: float = 0.0  # faster or slower by up to this share, which changes the pitch of a sound, too
    gain: float = 0.0  # louder or softer by up to this factor, as a natural logarithm


class SignalData(ExampleData[ArrayBatch]):
    """Signals with targets in three parts; a batch is padded to its longest signal.

    If all signals have one length, batches have no ``lengths``.
    """

    sha256: str
    shape: tuple[int, int]  # points of the longest signal, channels
    draws = 3

    def __init__(
        self,
        parts: Parts,
        labels: tuple[str, ...],
        *,
        name: str,
        longest: int | None = None,
        changes: SignalChanges | None = None,
        group_by_length: bool = False,
    ) -> None:
        """``parts``: train, validation, test; ``labels``: the names of the classes, none if the targets are texts.

        Of signals with more than ``longest`` points the middle is read. ``group_by_length``: a training batch has
        signals of about the same length, and so little padding.
        """
        self.parts: dict[Part, Signals] = dict(zip(PARTS, parts, strict=True))
        super().__init__((len(parts[0].values), len(parts[1].values), len(parts[2].values)), name)
        if not self.count:
            raise UserError(f"no signal of {name} is left for training; lower --data.validation and --data.test")
        self.labels, self.changes = labels, SignalChanges() if changes is None else changes
        lengths = np.concatenate([part.lengths for part in parts])
        self.longest = int(min(lengths.max(), longest or lengths.max()))
        self._buckets = bucket_tops(np.minimum(parts[0].lengths, self.longest)) if group_by_length else None
        self.shape = (self.longest, parts[0].values[0].shape[1])
        self.dynamic_shapes = bool((np.minimum(lengths, self.longest) < self.longest).any()) or self.changes.speed > 0
        self.sha256 = fingerprint(parts, labels)

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How often each class occurs in the training part, [classes]."""
        classes = [int(row[0]) for row in self.parts["train"].targets]
        return np.bincount(classes, minlength=len(self.labels))

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> ArrayBatch:
        chosen = self.parts[part].pick(numbers)
        signals = [cut(to_floats(values), self.longest, 0.5) for values in chosen.values]
        targets = chosen.targets if counts else tuple(np.full_like(row, IGNORE_INDEX) for row in chosen.targets)
        return array_batch(signals, targets, self.dynamic_shapes)

    def train_batch(self, numbers: Numbers, random: Uniform) -> ArrayBatch:
        chosen = self.parts["train"].pick(numbers)
        signals = [self._changed(to_floats(values), row) for values, row in zip(chosen.values, random, strict=True)]
        return array_batch(signals, chosen.targets, self.dynamic_shapes)

    def _shuffled(self, seed: int, epoch: int, total: int) -> Numbers:
        """Shuffled signals, or shuffled batches of signals from one bucket of lengths or two."""
        order = super()._shuffled(seed, epoch, total)
        if self._buckets is None:
            return order
        order = order[np.argsort(self._buckets[order], kind="stable")]
        begun = -epoch * self.count % total  # these complete the last batch of the epoch before
        first, *batches = np.split(order, np.arange(begun, self.count, total))
        last = batches.pop() if batches else first[:0]  # the next epoch completes it
        generator = np.random.Philox(counter=1 << 192, key=(seed % WORDS) << 64 | epoch % WORDS)
        mixed = np.argsort(generator.random_raw(len(batches)), kind="stable")
        return np.concatenate((first, *(batches[number] for number in mixed), last))

    def _changed(self, signal: Floats, random: NDArray[np.float64]) -> Floats:
        """One signal [T, M] after crop, change of speed and gain; ``random`` [3]."""
        change = self.changes
        if change.speed:
            signal = faster(signal, 1 + change.speed * (2 * random[0] - 1))
        signal = cut(signal, self.longest, random[1] if change.crop else 0.5)
        return signal * np.float32(np.exp(change.gain * (2 * random[2] - 1))) if change.gain else signal


PARTS: tuple[Part, Part, Part] = ("train", "validation", "test")


def cut(signal: Floats, longest: int, place: float) -> Floats:
    """At most ``longest`` points of a signal [T, M]; ``place`` 0: its beginning, 1: its end."""
    start = int(max(0, len(signal) - longest) * place)
    return signal[start : start + longest]


def faster(signal: Floats, factor: float) -> Floats:
    """A signal [T, M] played at another speed, by linear interpolation: [T / factor, M]."""
    old = np.arange(len(signal))
    new = np.arange(max(1, round(len(signal) / factor))) * factor
    return np.stack([np.interp(new, old, channel) for channel in signal.T], axis=1).astype(np.float32)


def array_batch(signals: list[Floats], targets: tuple[NDArray[np.int64], ...], with_lengths: bool) -> ArrayBatch:
    """Signals [T, M] and targets [L] as a batch, padded to the longest of each."""
    import torch  # not at the top: configs are read without torch

    lengths = [len(signal) for signal in signals]
    inputs = padded(signals, max(lengths), 0.0)
    rows = padded(list(targets), max(1, *map(len, targets)), IGNORE_INDEX)
    return ArrayBatch(torch.from_numpy(inputs), torch.from_numpy(rows), torch.tensor(lengths) if with_lengths else None)
