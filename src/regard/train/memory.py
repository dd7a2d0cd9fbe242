"""Memory that does not suffice: told beforehand where it can be known, and with the setting that fits where it cannot.

A pass through the model takes what it takes; the way to know whether a smaller batch fits is to try it. A run that is
out of memory is over, so its engine is free for such trials.
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

#: How the allocators of torch, numpy and the C++ library say it, where the type of the error does not.
_SAID = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc")
#: And oneDNN, which says no more than this; with more words after it, it means something else.
_ALONE = ("could not create a primitive", "could not create a memory object")
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class OutOfMemory(UserError):
    """Memory ran out in training. ``fix`` names the setting that needs less."""

    def __init__(self, problem: str, fix: str):
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


def exhausted(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and (said in _ALONE or any(words in said for words in _SAID))


def capacity(device: torch.device) -> int | None:
    """The bytes that this process can have on `device` at the very most; None where nobody says."""
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
    """Refuse a model whose weights and gradients alone exceed all memory: trying it could take the machine down."""
    limit = capacity(device)
    if limit is None:
        return
    layers = getattr(experiment.model, "layers", None)
    # Weights are whole on every rank for a moment, gradients never; both are float32.
    bytes_each = 4 + 4 / world.size
    try:
        first, second = (_weights(experiment, count) for count in (1, 2))
    except RuntimeError as error:  # more elements than 64 bits can count
        if "overflow" not in str(error).lower():
            raise
        raise UserError(f"{_named(experiment)} is larger than any memory; lower --model.width") from error
    needed = bytes_each * (first + (second - first) * ((layers or 1) - 1))
    if needed <= limit:
        return
    fit = math.floor((limit / bytes_each - first) / max(second - first, 1)) + 1 if layers else 0
    fix = f"--model.layers {fit} is the most" if fit >= 1 else "lower --model.width"
    raise UserError(
        f"{_named(experiment)} needs at least {_size(needed)} for weights and gradients, but {device} has "
        f"{_size(limit)}; {fix}"
    )


def too_large(engine: Engine) -> OutOfMemory:
    """The error for an engine that ran out of memory; its message has the setting that fits, tried out."""
    data, train = engine.experiment.data, engine.experiment.train
    one, unit = engine.data.smallest_batch, "token" if engine.data.dynamic_shapes else "window"
    windows = f"{data.batch} {unit}{'s' if data.batch > 1 else ''}"
    context = getattr(engine.experiment.model, "context", None)
    said = f"memory ran out with {windows}{f' of {context} tokens' if context else ''} at a time on {engine.device}"
    for size in (size for size in _smaller(data.batch) if size >= one):
        if engine.world.size > 1 or _fits(engine, size):  # ranks cannot try things out alone
            setting = f"--data.batch {size} --train.accumulate {train.accumulate * data.batch // size}"
            return OutOfMemory(said, f"use {setting}, which trains on as many {unit}s per update")
    if not train.checkpointing and engine.world.size == 1:
        engine.model.checkpointing = True  # type: ignore[assignment]
        if _fits(engine, one):
            times = train.accumulate * -(-data.batch // one)
            setting = f"--train.checkpointing true --data.batch {one} --train.accumulate {times}"
            return OutOfMemory(said, f"use {setting}, which needs less memory and more time")
    return OutOfMemory(f"{said}, and not even one fits", "lower --model.width, --model.layers or --model.context")


def model_too_large(experiment: Experiment, device: torch.device) -> OutOfMemory:
    """The error for a model that could not even be built."""
    problem = f"memory ran out while {_named(experiment)} was built for {device}"
    return OutOfMemory(problem, "lower --model.width or --model.layers")


def _fits(engine: Engine, size: int) -> bool:
    """Whether one update with `size` windows goes through; it spoils the engine, which is of no use any more."""
    experiment = engine.experiment
    smaller: Any = replace(experiment.data, batch=size)  # type: ignore[type-var]
    engine.experiment = replace(experiment, data=smaller, train=replace(experiment.train, accumulate=1))
    engine.terms = engine.task.terms  # compiling each size anew would take minutes
    engine.forget()
    if engine.graphs:  # their memory is nobody else's while they live
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
    """Give back what the failed pass left, to the device or to the system: training keeps it (see allocator.py)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def _smaller(batch: int) -> Iterator[int]:
    """Divisors of `batch`, so that accumulation can make up for it exactly, each at most half of the one before."""
    pairs = [(low, batch // low) for low in range(1, math.isqrt(batch) + 1) if batch % low == 0]
    last = batch
    for size in sorted({divisor for pair in pairs for divisor in pair}, reverse=True):
        if size <= last // 2:
            last = size
            yield size


class _Unfilled(TorchFunctionMode):
    """Leaves weights as they are: random numbers on the meta device would import torch's compiler, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _weights(experiment: Experiment, layers: int) -> int:
    """How many weights the model has with that many layers, from shapes alone: the meta device holds no data."""
    model: Any = experiment.model
    with torch.device("meta"), _Unfilled():
        built = (replace(model, layers=layers) if hasattr(model, "layers") else model).build()
    return sum(parameter.numel() for parameter in built.parameters())


def _named(experiment: Experiment) -> str:
    sizes = [(name, getattr(experiment.model, name, None)) for name in ("layers", "width")]
    shown = " and ".join(f"{name} {value:,}" for name, value in sizes if value is not None)
    return f"a model of {shown}" if shown else "the model"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024 or unit == "PiB":
            return f"{count:,.3g} {unit}"
        count /= 1024
    raise AssertionError
