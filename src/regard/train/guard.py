"""Checks before a run starts, and errors of the machine while it runs, each as a UserError that names the fix.

A model whose weights alone exceed the memory is refused. When memory runs out later, the error names a setting that
fits; whether a smaller batch does is found out by trying it. A run that is out of memory has ended, so its engine can
be used for such trials.
"""

import ctypes
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from regard.attention import BackendRefused
from regard.data import Batch, Data
from regard.errors import UserError
from regard.models import ArrayEncoder, Encoder, LanguageModel, Seq2SeqModel
from regard.models.device import find_device
from regard.models.shapes import build_on_meta
from regard.parallel.layout import Layout
from regard.parallel.world import ONE, World, from_environment
from regard.train.engine import Engine
from regard.train.experiment import Experiment
from regard.train.precision import Precision

T = TypeVar("T")

#: A recipe with data and a task for each kind of model.
STARTS = {
    LanguageModel: "shakespeare",
    Encoder: "shakespeare-encoder",
    Seq2SeqModel: "translate-transformer",
    ArrayEncoder: "digits",
}

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


def check_start(experiment: Experiment, layout: Layout = ONE) -> None:
    """Refuse a device, number format or layout that is not available, and a model larger than the memory."""
    world = from_environment(layout)
    world.lanes(experiment.train.lanes)  # refuses a number that the ranks cannot share
    device = find_device(experiment.train.device, world.local, "--train.device")
    Precision(experiment.train.precision, device)
    if experiment.train.compile is True and device.type == "mps":
        raise UserError("nothing can be compiled for mps; leave out --train.compile, or use --train.device cpu")
    check_task(experiment)
    check_model(experiment, device, world)


def check_task(experiment: Experiment) -> None:
    """Refuse a model that the task cannot train, such as an encoder that would predict tokens that it sees."""
    model = build_on_meta(experiment.model.reduced())
    if not isinstance(model, experiment.task.trains):
        recipe = next((name for kind, name in STARTS.items() if isinstance(model, kind)), "")
        raise UserError(
            f"the task {experiment.task.kind} cannot train the {experiment.model.kind}, as it needs a "
            f"{experiment.task.trains.__name__}; start from another recipe: regard train {recipe} --model ..."
        )


def make_engine(
    experiment: Experiment, data: Data[Batch], world: World, start: Mapping[str, Tensor] | None = None
) -> Engine:
    """An engine, or an error if the model does not fit into memory; ``start``: weights to start from."""
    with suppress(_Exhausted):
        return _attempt(lambda: Engine(experiment, data, world, start))
    problem = f"memory ran out while {_description(experiment)} was built for {world.device}"
    raise OutOfMemory(problem, "lower --model.width or --model.layers")


def guarded(work: Callable[[], T], engine: Engine) -> T:
    """``work()``; out of memory and a backend that refuses become a UserError that names the setting to change."""
    try:
        return _attempt(work)
    except BackendRefused as refusal:
        raise UserError(f"{refusal.problem}; use --model.backend auto") from refusal
    except _Exhausted:
        pass
    # Outside of the handler the error and the tensors of the failed pass are freed.
    raise too_large(engine)


class _Exhausted(Exception):
    """Memory ran out, on any device."""


def _attempt(work: Callable[[], T]) -> T:
    """``work()``; out of memory becomes an `_Exhausted` without a traceback, which would hold the tensors."""
    try:
        return work()
    except (RuntimeError, MemoryError, OSError) as error:
        message = str(error).lower()
        known = message in _MESSAGES or any(phrase in message for phrase in _PHRASES)
        if not (known or isinstance(error, MemoryError | torch.OutOfMemoryError)):
            raise
    raise _Exhausted


def capacity(device: torch.device) -> int | None:
    """The most bytes that this process can allocate on ``device``; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    limits = []
    if {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= getattr(os, "sysconf_names", {}).keys():  # Windows has no sysconf
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
    # Both are float32, and every rank of a replica has a share of each.
    bytes_each = 8 * world.layout.replicate / world.size
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


def _fits(engine: Engine, size: int) -> bool:
    """Whether one update with batches of ``size`` succeeds. The engine is unusable for training afterwards."""
    experiment = engine.experiment
    smaller = replace(experiment.data, batch=size)  # type: ignore[type-var]
    engine.experiment = replace(experiment, data=smaller, train=replace(experiment.train, accumulate=1))
    engine.terms = engine.task.terms  # compiling for each size would take minutes
    engine.release()
    if engine.graphs:  # they hold their memory pool
        torch.compiler.reset()
    # Return the memory of the failed pass to the device or the system.
    gc.collect()
    if engine.device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)
    try:
        _attempt(engine.update)
    except _Exhausted:
        return False
    finally:
        engine.experiment = experiment
    return True


def keep_freed_memory() -> None:
    """Keep freed memory in the process, on Linux.

    A training step on a CPU frees and allocates the same tens of megabytes again and again. By default glibc returns
    freed memory at the top of its heap to the system, which then hands it out again page by page: about a thousand page
    faults a step at the size of the small recipe, 3-4 % of its time. Two settings of glibc prevent that.
    """
    trim_threshold, mmap_threshold = -1, -3  # from malloc.h
    if (libc := _glibc()) is not None:
        libc.mallopt(trim_threshold, 2**31 - 1)  # never
        libc.mallopt(mmap_threshold, 32 * 2**20)  # take up to 32 MiB (glibc's limit) from the heap


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _smaller(batch: int) -> Iterator[int]:
    """Divisors of ``batch``, each at most half of the previous one; accumulation makes up for them exactly."""
    last = batch
    for size in range(batch // 2, 0, -1):
        if batch % size == 0 and size <= last // 2:
            last = size
            yield size


def _weights(experiment: Experiment, layers: int) -> int:
    """The number of weights with that many layers, from the shapes on the meta device."""
    built = build_on_meta(experiment.model.with_layers(layers))
    return sum(parameter.numel() for parameter in built.parameters())


def _description(experiment: Experiment) -> str:
    return f"a model of layers {experiment.model.layers:,} and width {experiment.model.width:,}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:,.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} PiB"
