"""The device: choosing it, moving batches to it, its clock, its memory and its measured peak."""

import functools
import math
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device called `name`; "auto" takes CUDA, then MPS, then the CPU. A UserError when it is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind, _, index = name.partition(":")
    if not there.get(kind) or (index and not index.isdigit()):
        usable = ", ".join(kind for kind, present in there.items() if present)
        raise UserError(f"there is no device {name!r} here; use --train.device auto, or one of: {usable}")
    if kind == "cuda":
        number = int(index) if index else local_rank
        if number >= torch.cuda.device_count():
            raise UserError(
                f"there is no device cuda:{number}, only {torch.cuda.device_count()} of that kind; "
                "start fewer processes per machine or choose another --train.device"
            )
        return torch.device("cuda", number)
    return torch.device(kind)


def move(value: Any, device: torch.device) -> Any:
    """A batch on `device`: tensors inside named tuples are moved, everything else stays."""
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        # From pinned memory the copy runs beside the computation.
        value = value.pin_memory() if device.type == "cuda" else value
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        moved = [move(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return value


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def memory(device: torch.device) -> int:
    """The most bytes in use so far: of the accelerator, or of the process on a CPU."""
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
    """Floating-point operations per second of a matrix product here and now: the best of those within 0.2 s."""
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


def flops_per_token(model: nn.Module) -> float:
    """Operations of forward and backward for one token: 6 per matrix weight, and attention over the whole context.

    A table that is only looked up multiplies nothing; one that is also the head (tied) does.
    """
    lookups = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    lookups -= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2 and p not in lookups)
    config: Any = model.config
    return 6 * matrices + 12 * config.layers * config.width * config.context
