"""Memory beyond the tensors of a step: libraries and their workspaces, and the gaps between freed blocks.

peak = tensors + share x activations + constant. On a CPU the C library keeps freed blocks that later tensors do not
fit into: with every tensor in a mapping of its own (MALLOC_MMAP_THRESHOLD_=65536) the gaps are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class MeasuredMemory(NamedTuple):
    """A step and its memory, in bytes."""

    tensors: float  # of the plan, activations included
    activations: float
    peak: float


class MemoryLaw(NamedTuple):
    """What a process needs beyond the tensors that a plan counts."""

    constant: float = 0.0  # bytes
    share: float = 0.0  # of the activations

    def overhead(self, activations: float) -> float:
        """Bytes beyond the tensors."""
        return self.constant + self.share * activations

    @classmethod
    def fit(cls, measured: Sequence[MeasuredMemory]) -> MemoryLaw:
        """The law of least squared relative error, with terms that are not negative."""
        best = (float("inf"), cls())
        for chosen in ((0, 1), (0,), (1,), ()):
            rows = torch.tensor([[1 / m.peak, m.activations / m.peak] for m in measured], dtype=torch.float64)
            wanted = torch.tensor([[1 - m.tensors / m.peak] for m in measured], dtype=torch.float64)
            part = rows[:, list(chosen)]
            scale = part.amax(0) if chosen else part.sum(0)
            found = torch.linalg.lstsq(part / scale, wanted).solution[:, 0] / scale if chosen else scale
            if bool((found >= 0).all()):
                error = float((part @ found - wanted[:, 0]).square().sum())
                values = dict(zip(chosen, found.tolist(), strict=True))
                best = min(best, (error, cls(values.get(0, 0.0), values.get(1, 0.0))))
        return best[1]
