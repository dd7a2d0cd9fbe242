"""The device: transfer of batches, synchronization, memory and peak FLOP/s."""

import functools
import math
import sys
import time
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.attention import Mask
from regard.models import Model
from regard.models.base import Seq2SeqModel

B = TypeVar("B")


def move(batch: B, device: torch.device) -> B:
    """A batch on ``device``: tensors inside named tuples are moved, everything else stays."""

    def transfer(tensor: Tensor) -> Tensor:
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


def flops_per_token(model: Model) -> float:
    """Operations of the forward and backward pass per token: 6 per matrix weight, and attention to the visible keys.

    An embedding table counts only if it is also the head (tied). For an encoder-decoder this is the cost of one source
    and one target token without attention: sentences are much shorter than the context, which only limits them.
    """
    lookups = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    lookups -= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2 and p not in lookups)
    matrices -= model.inactive_parameters
    keys = [_visible_keys(mask, model.config.context) for mask in model.masks]
    if isinstance(model, Seq2SeqModel) or not keys:
        return 6 * matrices
    return 6 * matrices + 12 * model.attention_calls * model.config.width * sum(keys) / len(keys)


def _visible_keys(mask: Mask, length: int) -> float:
    """The mean number of keys within a mask's reach, over the queries of a text."""
    back, ahead = (length if reach is None else reach for reach in mask.reach())
    return sum(min(i, back) + 1 + min(length - 1 - i, ahead) for i in range(length)) / length
