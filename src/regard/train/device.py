"""The device: transfer of batches, synchronization, memory and peak FLOP/s."""

import functools
import math
import sys
import time
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

B = TypeVar("B")


def move(batch: B, device: torch.device) -> B:
    """A batch on ``device``: tensors inside named tuples are moved, everything else stays."""

    def transfer(tensor: Tensor) -> Tensor:
        if tensor.device.type == device.type:  # made there
            return tensor
        # From pinned memory the copy overlaps with the computation.
        return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

    return batch if device.type == "cpu" else tree_map_only(Tensor, transfer, batch)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def memory(device: torch.device) -> int:
    """The peak memory in bytes: of the accelerator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product, measured: the best within 0.2 s."""
    size = {"cpu": 768, "cuda": 8192}.get(device.type, 2048)
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones(size, size, device=device, dtype=dtype)
    best, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < 0.2:
        began = time.perf_counter()
        torch.mm(left, right)
        synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
