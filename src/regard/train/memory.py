"""Out of memory: refused before the start where weights alone exceed it, else reported with a setting that fits.

Whether a smaller batch fits is found out by trying it. A run that is out of memory has ended, so its engine can be used
for such trials.
"""

import ctypes
import gc
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from regard.errors import UserError
from regard.train.engine import Engine
from regard.train.experiment import Experiment
from regard.train.shard import World

#: Phrases of the allocators of torch, numpy and the C++ library, whose error types do not say it.
_PHRASES = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc")
#: Whole messages of oneDNN; with more words after them, they mean something else.
_MESSAGES = ("could not create a primitive", "could not create a memory object")
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class OutOfMemory(UserError):
    """Memory ran out in training. ``fix`` names the setting that needs less."""

    def __init__(self, problem: str, fix: str):
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


def exhausted(error: BaseException) -> bool:
    """Whether an error means out of memory, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    message = str(error).lower()
    known = message in _MESSAGES or any(phrase in message for phrase in _PHRASES)
    return isinstance(error, RuntimeError | OSError) and known


def capacity(device: torch.device) -> int | None:
    """The most bytes that this process can allocate on ``device``; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    limits = []
    if {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
        limits.append(int(_CGROUP.read_text()))
    except (ImportError, OSError, ValueError):  # Windows; no control groups; no limit ("max")
        pass
    return min((limit for limit in limits if limit > 0), default=None)


def check_model(experiment: Experiment, device: torch.device, world: World) -> None:
    """Refuse a model whose weights and gradients alone exceed the memory: trying it could bring the machine down."""
    limit = capacity(device)
    if limit is None:
        return
    # Every rank briefly holds the whole weights, but never the whole gradients; both are float32.
    bytes_each = 4 + 4 / world.size
    try:
        first, second = (_weights(experiment, count) for count in (1, 2))
    except RuntimeError as error:  # more elements than 64 bits can count
        if "overflow" not in str(error).lower():
            raise
        raise UserError(f"{_description(experiment)} is larger than any memory; lower --model.width") from error
    needed = bytes_each * (first + (second - first) * (experiment.model.layers - 1))
    if needed <= limit:
        return
    fit = math.floor((limit / bytes_each - first) / max(second - first, 1)) + 1
    fix = f"--model.layers {fit} is the most" if fit >= 1 else "lower --model.width"
    raise UserError(
        f"{_description(experiment)} needs at least {_size(needed)} for weights and gradients, but {device} has "
        f"{_size(limit)}; {fix}"
    )


def too_large(engine: Engine) -> OutOfMemory:
    """The error for an engine that ran out of memory; its message names a setting that was found to fit."""
    data, train = engine.experiment.data, engine.experiment.train
    one, unit = engine.data.smallest_batch, "token" if engine.data.dynamic_shapes else "window"
    windows = f"{data.batch} {unit}{'s' if data.batch > 1 else ''}"
    context = engine.experiment.model.context
    problem = f"memory ran out with {windows} of {context} tokens at a time on {engine.device}"
    for size in (size for size in _smaller(data.batch) if size >= one):
        if engine.world.size > 1 or _fits(engine, size):  # one rank cannot run a trial alone
            setting = f"--data.batch {size} --train.accumulate {train.accumulate * data.batch // size}"
            return OutOfMemory(problem, f"use {setting}, which trains on as many {unit}s per update")
    if not train.checkpointing and engine.world.size == 1:
        engine.model.checkpointing = True
        if _fits(engine, one):
            times = train.accumulate * -(-data.batch // one)
            setting = f"--train.checkpointing true --data.batch {one} --train.accumulate {times}"
            return OutOfMemory(problem, f"use {setting}, which needs less memory and more time")
    return OutOfMemory(f"{problem}, and not even one fits", "lower --model.width, --model.layers or --model.context")


def model_too_large(experiment: Experiment, device: torch.device) -> OutOfMemory:
    """The error for a model that could not be built."""
    problem = f"memory ran out while {_description(experiment)} was built for {device}"
    return OutOfMemory(problem, "lower --model.width or --model.layers")


def _fits(engine: Engine, size: int) -> bool:
    """Whether one update with batches of ``size`` succeeds. The engine is unusable for training afterwards."""
    experiment = engine.experiment
    smaller: Any = replace(experiment.data, batch=size)  # type: ignore[type-var]
    engine.experiment = replace(experiment, data=smaller, train=replace(experiment.train, accumulate=1))
    engine.terms = engine.task.terms  # compiling for each size would take minutes
    engine.release()
    if engine.graphs:  # they hold their memory pool
        torch.compiler.reset()
    _release(engine.device)
    try:
        engine.update()
    except (RuntimeError, MemoryError, OSError) as error:
        if not exhausted(error):
            raise
        return False
    else:
        return True
    finally:
        engine.experiment = experiment


def _release(device: torch.device) -> None:
    """Return the memory of the failed pass to the device or the system (allocator.py keeps it otherwise)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def _smaller(batch: int) -> Iterator[int]:
    """Divisors of ``batch``, each at most half of the previous one; accumulation makes up for them exactly."""
    pairs = [(low, batch // low) for low in range(1, math.isqrt(batch) + 1) if batch % low == 0]
    last = batch
    for size in sorted({divisor for pair in pairs for divisor in pair}, reverse=True):
        if size <= last // 2:
            last = size
            yield size


class _SkipInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: random numbers on the meta device would import torch's compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _weights(experiment: Experiment, layers: int) -> int:
    """The number of weights with that many layers, from the shapes on the meta device."""
    model: Any = experiment.model
    with torch.device("meta"), _SkipInit():
        built = replace(model, layers=layers).build()
    return sum(parameter.numel() for parameter in built.parameters())


def _description(experiment: Experiment) -> str:
    return f"a model of layers {experiment.model.layers:,} and width {experiment.model.width:,}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:,.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} PiB"
