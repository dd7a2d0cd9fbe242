"""A law of the time of a step, whose constants are near those that the machine shows in a second of measurements.

An operation occupies the device for max(FLOPs / rate, bytes / bandwidth), at least the time of an empty kernel (the
roofline; Williams, Waterman and Patterson 2009). A GPU is a queue: an operation starts when the host has started it and
the one before has ended. With H_j, the host's time up to the start of operation j, and D_j, the device's time for it,

    seconds = max_j (H_j + D_j + D_j+1 + ... + D_n)

which is the host's time if operations are short and the device's if they are long. The host waits before the update,
for the loss. On a CPU, host and device are one, so times are added.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from regard.plan.operations import Timeline, TimelineSegment
from regard.train.device import synchronize

KERNEL = 2e-6  # seconds of an empty kernel on a GPU
HOST = 2e-5  # seconds of the host for an operation, usually; machines differ by several times
#: Elementwise operations and reductions reach less than a copy, as tensors are strided and small.
BANDWIDTH = 0.7
#: How far, in logarithms, constants may be from those (the work of others disturbs what is measured of a CPU), and
#: predictions from measured times.
GPU_SPREAD, SPREAD, ERROR = 0.25, 1.0, 0.15


class Peaks(NamedTuple):
    """What this machine reaches: FLOP/s of 16-bit formats and of float32, and bytes per second of a copy."""

    half: float
    single: float
    bytes: float


class StepWork(NamedTuple):
    """What decides the time of a step."""

    timeline: Timeline
    accumulate: int
    flops: float

    def in_tensors(self) -> StepWork:
        """The same, for many evaluations."""

        def converted(segment: TimelineSegment) -> TimelineSegment:
            return TimelineSegment(*(torch.tensor(x, dtype=torch.float64) for x in segment[:4]), weight=segment.weight)  # type: ignore[arg-type]

        return self._replace(timeline=Timeline(*(tuple(map(converted, part)) for part in self.timeline)))


class MeasuredStep(NamedTuple):
    """A step and its time."""

    step: StepWork
    seconds: float


class SpeedLaw(NamedTuple):
    """Seconds per FLOP, per byte and per operation, and the median relative error of steps that were left out."""

    per_half: float  # FLOP of a 16-bit format
    per_single: float  # of float32
    per_byte: float
    per_operation: float  # that Python starts
    queued: bool  # a GPU works while the host starts further operations
    error: float = 0.0

    def seconds(self, step: StepWork) -> float:
        """The time of a step."""
        micro_batch, update = step.timeline
        parts = [(one, step.accumulate) for one in micro_batch] + [(one, 1) for one in update]
        return sum(one.weight * self._of(one, times) for one, times in parts)

    def _of(self, segment: TimelineSegment, times: int) -> float:
        host, half, single, size = (torch.as_tensor(x, dtype=torch.float64) for x in segment[:4])
        device = torch.maximum(half * self.per_half + single * self.per_single, size * self.per_byte)
        host = host * self.per_operation
        if not self.queued:
            return times * float(host.sum() + device.sum())
        started, device = host.repeat(times).cumsum(0), (device + KERNEL).repeat(times)
        return float((started + device.flip(0).cumsum(0).flip(0)).max())

    @classmethod
    def fit(cls, measured: Sequence[MeasuredStep], peaks: Peaks, queued: bool) -> SpeedLaw:
        """The law of these steps; its error by leaving out one at a time."""
        if len(measured) < 2:
            raise ValueError("a law needs two measured steps at least")
        left_out = []
        for place, one in enumerate(measured):
            law = cls._nearest([*measured[:place], *measured[place + 1 :]], peaks, queued)
            left_out.append(abs(law.seconds(one.step) / one.seconds - 1))
        return cls._nearest(measured, peaks, queued)._replace(error=statistics.median(left_out))

    @classmethod
    def _nearest(cls, measured: Sequence[MeasuredStep], peaks: Peaks, queued: bool) -> SpeedLaw:
        """The constants of least cost: absolute errors of the logarithms, and squared distances from the peaks.

        A pattern search (Hooke and Jeeves 1961), which needs no derivative.
        """
        measured = [one._replace(step=one.step.in_tensors()) for one in measured]
        start = [1 / peaks.half, 1 / peaks.single, 1 / (BANDWIDTH * peaks.bytes), HOST]
        spreads = (*[GPU_SPREAD if queued else SPREAD] * 3, SPREAD)

        def law(place: Sequence[float]) -> SpeedLaw:
            half, single, size, operation = (x * math.exp(away) for x, away in zip(start, place, strict=True))
            return cls(half, single, size, operation, queued)

        def cost(place: Sequence[float]) -> float:
            found = law(place)
            errors = (abs(math.log(found.seconds(one.step) / one.seconds)) for one in measured)
            return sum(errors) / ERROR + sum((x / s) ** 2 for x, s in zip(place, spreads, strict=True)) / 2

        place, size = [0.0] * len(start), 0.5
        best = cost(place)
        while size > 0.01:
            before = best
            for axis in range(len(start)):
                for way in (size, -size):
                    other = [x + way * (axis == i) for i, x in enumerate(place)]
                    if (found := cost(other)) < best:
                        place, best = other, found
            if best == before:
                size /= 2
        return law(place)


def measure_peaks(device: torch.device) -> Peaks:
    """The fastest of a few matrix products and copies on ``device``: a second at most."""
    size, elements = (8192, 2**28) if device.type == "cuda" else (1024, 2**24)
    x = torch.randn(size, size, device=device)
    y = torch.empty(elements, device=device)
    single = 2 * size**3 / _fastest(lambda: x @ x, device)
    half = single
    if device.type == "cuda":
        z = x.bfloat16()
        half = 2 * size**3 / _fastest(lambda: z @ z, device)
    other = torch.empty_like(y)
    return Peaks(half, single, 2 * elements * y.element_size() / _fastest(lambda: other.copy_(y), device))


def _fastest(run: Callable[[], object], device: torch.device, times: int = 7) -> float:
    found = []
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found)
