"""Memory that is almost full, and a setting with which it is not."""

from __future__ import annotations

from collections.abc import Iterator

from regard.doctor import limits
from regard.doctor.finding import Finding
from regard.train.experiment import Experiment


def judge(used: int, before: int, limit: int | None, experiment: Experiment) -> Iterator[Finding]:
    """``used`` is the peak, ``before`` what the process had before its first step."""
    if not limit or used < limits.FULL * limit:
        return
    evidence = f"{_size(used)} of {_size(limit)}"
    cause = "what a batch leaves for the backward pass grows with its size"
    yield Finding("memory", "data.batch", evidence, cause, _fitting(used - min(before, used), used, limit, experiment))


def _fitting(grown: int, used: int, limit: int, experiment: Experiment) -> str:
    """A batch for which the rest suffices, with as many tokens per update; activations are proportional to it."""
    batch, accumulate = getattr(experiment.data, "batch", 1), experiment.train.accumulate
    sizes = [size for size in range(batch // 2, 0, -1) if batch % size == 0]
    fits = (size for size in sizes if used - grown * (1 - size / batch) < limits.ROOMY * limit)
    size = next(fits, sizes[0] if sizes else 0)
    if size:
        return f"--data.batch {size} --train.accumulate {accumulate * batch // size}"
    return "--train.checkpointing true" if not experiment.train.checkpointing else "a smaller --model.width"


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"
