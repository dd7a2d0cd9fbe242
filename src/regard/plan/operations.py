"""Traced operations as far as they decide the time of a step: what starts them, and what the device does for them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
import torch.utils.checkpoint

ENGINE = "_engine_run_backward"  # the function of PyTorch that runs the backward pass
WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")  # around the methods of a dispatch mode


class StartedBy(Enum):
    """What starts an operation."""

    PYTHON = auto()
    AUTOGRAD = auto()  # the engine of the backward pass, without Python
    CHECKPOINT = auto()  # Python, in a block that is recomputed


#: The host's time for an operation, in units of one that Python starts. Measured on a CPU with tensors of a few numbers
#: (models of 12 layers, width 32, 16 tokens), with 4 µs added for each launch on a GPU. Recomputation is expensive, as
#: each saved tensor passes through functions in Python.
HOST_TIME = {StartedBy.PYTHON: 1.0, StartedBy.AUTOGRAD: 0.6, StartedBy.CHECKPOINT: 2.0}
VIEW = 0.2  # of those, for an operation that computes nothing
#: Fused kernels of attention reach about half the FLOP/s of matrix products (Dao 2023, fig. 5 and 6).
ATTENTION = 2.0


class Operation(NamedTuple):
    """One call of PyTorch's dispatcher."""

    launches: int  # kernels one after another; 0 of a view, which only the host computes
    flops: float = 0.0
    bytes: float = 0.0  # read and written
    half: bool = False  # products of 16-bit formats
    attention: bool = False  # a fused kernel of attention
    origin: StartedBy = StartedBy.PYTHON

    @property
    def host(self) -> float:
        """The host's time for it. Kernels after the first are started without Python, as autograd does."""
        one = HOST_TIME[self.origin]
        return one + (self.launches - 1) * HOST_TIME[StartedBy.AUTOGRAD] if self.launches else VIEW * one


class TimelineSegment(NamedTuple):
    """Operations between two points where the host waits for the device; one entry for each that computes."""

    host: Sequence[float]  # time of the host up to its start, since that of the one before
    half: Sequence[float]  # FLOPs of 16-bit formats
    single: Sequence[float]  # and of float32
    bytes: Sequence[float]
    weight: float = 1.0  # of this segment in the sum of a step's segments

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> TimelineSegment:
        """The segment of these operations."""
        rows, waiting = [], 0.0
        for one in operations:
            waiting += one.host
            if one.launches:
                flops = one.flops * (ATTENTION if one.attention else 1.0)
                rows.append((waiting, flops if one.half else 0.0, 0.0 if one.half else flops, one.bytes))
                waiting = 0.0
        host, half, single, size = zip(*rows or [(0.0,) * 4], strict=True)
        return cls(host, half, single, size)


class Timeline(NamedTuple):
    """What a step does: each of its micro-batches, and then the update."""

    micro_batch: tuple[TimelineSegment, ...]
    update: tuple[TimelineSegment, ...]

    def further(self, other: Timeline, times: int) -> Timeline:
        """This and ``times`` times the difference to another one, as with layers that repeat."""
        return Timeline(
            *(
                tuple(one._replace(weight=one.weight * (1 - times)) for one in own)
                + tuple(one._replace(weight=one.weight * times) for one in others)
                for own, others in zip(self, other, strict=True)
            )
        )


def started_by() -> StartedBy:
    """What started the operation that a dispatch mode is called with; to be called by that mode itself."""
    if torch._C._current_graph_task_id() == -1:
        return StartedBy.PYTHON
    frame = sys._getframe(1).f_back  # none below a thread of the engine
    while frame is not None and frame.f_code.co_filename.endswith(WRAPPERS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name == ENGINE:  # on a GPU the engine has a thread of its own
        return StartedBy.AUTOGRAD
    while frame is not None and frame.f_code.co_name != ENGINE:
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return StartedBy.CHECKPOINT
        frame = frame.f_back
    return StartedBy.PYTHON
