"""The seconds that a rank works in a step, without those in which it waits for others: they name the slowest rank.

All ranks end a step at the same time, because FSDP gathers weights and adds gradients up: a fast rank enters these
operations early and waits in them. So their time is taken off. What is left has to be compared, and not added up: a
transfer that runs beside a computation is taken off too. Not seen are waits for the tokens or heads of another rank,
and for another copy of the weights (HSDP): the ranks that wait so look as slow as the one they wait for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from regard.models import Model
from regard.parallel.world import World


class Waiting:
    """Measures FSDP's collective operations of a model."""

    def __init__(self, model: Model, world: World):
        self._cuda = world.device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        if world.size == 1:
            return
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

        measured = self._measured

        class MeasuredAllGather(DefaultAllGather):
            def __call__(self, *given: Any, **named: Any) -> Any:
                with measured():
                    return super().__call__(*given, **named)

        class MeasuredReduceScatter(DefaultReduceScatter):
            def __call__(self, *given: Any, **named: Any) -> Any:
                with measured():
                    return super().__call__(*given, **named)

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(MeasuredAllGather())
                module.set_custom_reduce_scatter(MeasuredReduceScatter())

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Measures one operation: on a GPU in the stream that it runs in, elsewhere in this thread."""
        if self._cuda:
            both = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            both[0].record()
            yield
            both[1].record()
            self._events.append(both)
        else:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began

    def take(self) -> float:
        """The seconds since the last call. A GPU has to have finished."""
        waited = self._seconds + sum(first.elapsed_time(last) for first, last in self._events) / 1e3
        self._seconds, self._events = 0.0, []
        return waited


def slowest(steps: Sequence[tuple[float, ...]]) -> dict[str, object]:
    """The rank that works longest, as mean over some steps, and the median of the others; nothing for one process.

    >>> slowest([(1.0, 3.0, 2.0), (1.0, 5.0, 2.0)])
    {'slowest_rank': 1, 'step_seconds_slowest': 4.0, 'step_seconds_others': 1.5}
    """
    means = [statistics.fmean(each) for each in zip(*steps, strict=True)]
    if not means:
        return {}
    rank = means.index(max(means))
    return {
        "slowest_rank": rank,
        "step_seconds_slowest": round(means.pop(rank), 6),
        "step_seconds_others": round(statistics.median(means), 6),
    }
