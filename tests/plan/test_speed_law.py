"""The law of the time of a step, and the model of the heap."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.plan import MeasuredStep, Operation, Peaks, SpeedLaw, StepWork, Timeline, TimelineSegment, measure_peaks
from regard.plan.heap import Heap
from regard.plan.law import BANDWIDTH, HOST, KERNEL


def step_of(operations: list[Operation], accumulate: int = 1) -> StepWork:
    timeline = Timeline((TimelineSegment.of(operations),), (TimelineSegment.of([]),))
    return StepWork(timeline, accumulate, sum(one.flops for one in operations))


PEAKS = Peaks(half=15e12, single=1e12, bytes=1e11)
LAW = SpeedLaw(1 / 15e12, 1e-12, 1e-11, 1e-5, queued=True)


def test_a_gpu_takes_as_long_as_its_work_or_as_its_host_whichever_is_longer() -> None:
    long, short = Operation(1, flops=1e9), Operation(1, flops=1e3)
    assert LAW.seconds(step_of([long] * 50)) == pytest.approx(50e-3, rel=0.01)
    assert LAW.seconds(step_of([short] * 50)) == pytest.approx(50 * 1e-5, rel=0.02)
    # What is started while the device works is hidden by it, and what comes after it is not.
    assert LAW.seconds(step_of([long] + [short] * 50)) == pytest.approx(1e-3 + 1e-5 + 50 * KERNEL, rel=0.01)
    assert LAW.seconds(step_of([short] * 50 + [long])) == pytest.approx(1e-3 + 51e-5, rel=0.02)
    assert LAW._replace(queued=False).seconds(step_of([long] + [short] * 50)) == pytest.approx(1e-3 + 51e-5, rel=0.01)


def test_an_operation_takes_its_flops_or_its_bytes_whichever_take_longer() -> None:
    assert LAW.seconds(step_of([Operation(1, flops=1e9, bytes=1e9)])) == pytest.approx(1e-2, rel=0.01)
    assert LAW.seconds(step_of([Operation(1, flops=15e9, bytes=1e6, half=True)])) == pytest.approx(1e-3, rel=0.02)
    assert LAW.seconds(step_of([Operation(1, flops=1e9)] * 10, accumulate=3)) == pytest.approx(3e-2, rel=0.01)
    once = LAW.seconds(step_of([Operation(1, flops=1e9)]))
    assert LAW.seconds(step_of([Operation(1, flops=1e9, attention=True)])) == pytest.approx(2 * once, rel=0.02)


@settings(max_examples=2)
@given(st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3), st.floats(-1, 1)), st.booleans())
def test_a_law_finds_constants_near_the_peaks(away: tuple[float, float, float], queued: bool) -> None:
    single, size, host = (math.exp(x) for x in away)
    law = SpeedLaw(1 / PEAKS.half, single / PEAKS.single, size / (BANDWIDTH * PEAKS.bytes), host * HOST, queued)
    kinds = [Operation(1, flops=1e9), Operation(1, bytes=1e8), Operation(1), Operation(1, flops=3e8, bytes=5e7)]
    steps = [step_of([kinds[n % 4], kinds[n // 2 % 4]] * (20 + n)) for n in range(6)]
    found = SpeedLaw.fit([MeasuredStep(step, law.seconds(step)) for step in steps], PEAKS, queued)
    assert min(found[:4]) > 0
    assert all(found.seconds(step) == pytest.approx(law.seconds(step), rel=0.1) for step in steps)


def test_a_freed_block_that_is_too_small_makes_the_heap_grow() -> None:
    heap = Heap()
    for block in range(4):
        heap.allocate(block, 1000_000)
    full = heap.top
    heap.free(1)
    heap.free(3)
    heap.allocate("larger", 1500_000)  # fits neither, but the last one is at the end of the heap, and is extended
    assert heap.top == pytest.approx(full + 500_000, rel=0.01)
    heap.allocate("smaller", 900_000)
    heap.free(2)
    heap.free(0)
    assert heap.top == pytest.approx(full + 500_000, rel=0.01)
    heap.allocate("mapping", 2**26)
    heap.free("mapping")
    assert heap.mapped == 0
    assert heap.peak == pytest.approx(heap.top + 2**26, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 2**26), st.integers(0, 30)), max_size=60))
def test_blocks_of_a_heap_do_not_overlap(steps: list[tuple[int, int]]) -> None:
    heap, live = Heap(), dict[int, int]()
    for number, (size, other) in enumerate(steps):
        heap.allocate(number, size)
        live[number] = size
        if other in live:
            heap.free(other)
            del live[other]
        places = sorted((start, start + size) for start, size in heap._blocks.values() if start is not None)
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert heap.peak >= heap.top + heap.mapped >= sum(live.values())
    for number in live:
        heap.free(number)
    assert heap.mapped == 0
    assert sum(size for size, _ in heap._free) == heap.top


def test_a_law_needs_two_steps() -> None:
    with pytest.raises(ValueError, match="two measured steps"):
        SpeedLaw.fit([MeasuredStep(step_of([Operation(1)]), 1.0)], PEAKS, queued=True)


def test_peaks_are_measured() -> None:
    assert min(measure_peaks(torch.device("cpu"))) > 1e6
