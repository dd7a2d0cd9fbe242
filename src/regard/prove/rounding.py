"""Whether a difference is a fault or rounding, and the number formats that claims are tested in.

A fault repeats when every weight moves a little; rounding errors, and the choices that a rounding error decides, do
not. So rounding is estimated from the model: an FFT mixes rounding errors of later tokens into earlier ones, a causal
mask does not.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.prove.comparison import Gap, difference, gap
from regard.prove.model_under_test import ModelUnderTest
from regard.prove.registry import Case
from regard.train.precision import probe

TRIALS = 6  # moves of the weights
REPEATS = 0.6  # the least share of a difference (squared) that all trials have in common; rounding: 1 / TRIALS
UNITS, LEAST = 4, 1e-3  # weights move by so many units of rounding, and at least by this part of themselves
EXACT, UNKNOWN = 1e-6, 1e-5  # of the largest logit, for equal shapes; without weights to move, rounding is unknown


class NumberFormat(NamedTuple):
    """Weights and activations of one type, or mixed precision."""

    name: str
    dtype: torch.dtype
    autocast: bool = False

    @property
    def tolerance(self) -> float:
        """Of the largest logit: what another order of summation may change."""
        return max(1e-4, 16 * torch.finfo(self.dtype).eps)


FORMATS = {
    one.name: one
    for one in (
        NumberFormat("float32", torch.float32),
        NumberFormat("float64", torch.float64),
        NumberFormat("bfloat16", torch.bfloat16),
        NumberFormat("bfloat16 autocast", torch.bfloat16, autocast=True),
        NumberFormat("float16 autocast", torch.float16, autocast=True),
    )
}


REFERENCE = "float64"  # distinguishes rounding from a fault; few models are run in it


class FormatProbes:
    """Trials of the 16-bit formats in child processes, which run while other claims are tested."""

    def __init__(self, subject: ModelUnderTest, sweeps: bool = True) -> None:
        needed = sweeps and bool(subject.modules) and subject.device.type == "cpu"
        self._pool = ThreadPoolExecutor(2) if needed else None
        names = ("bfloat16", "float16") if needed else ()
        self._trials: dict[str, Future[str | None]] = {n: self._pool.submit(probe, n) for n in names if self._pool}

    def refusal(self, form: NumberFormat) -> str | None:
        """Why this machine cannot compute in a format; None if it can."""
        trial = self._trials.get(str(form.dtype).removeprefix("torch."))
        return None if trial is None else trial.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def exact(subject: ModelUnderTest) -> float:
    """The tolerance for equal shapes: what is masked is multiplied by zero, so nothing is left to round."""
    return EXACT if subject.modules else UNKNOWN


@contextmanager
def changed_weights(modules: Sequence[nn.Module], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace every floating-point weight and buffer by ``change`` of it; afterwards all are the tensors of before."""
    weights = {weight: weight.data for module in modules for weight in module.parameters()}
    owners = {part: dict(part._buffers) for module in modules for part in module.modules() if part._buffers}
    try:
        for weight, data in weights.items():
            if data.is_floating_point():
                weight.data = change(data)
        for part, buffers in owners.items():
            for name, x in buffers.items():
                if x is not None and x.is_floating_point():
                    part._buffers[name] = change(x)
        yield
    finally:
        for weight, data in weights.items():
            weight.data = data
        for part, buffers in owners.items():
            part._buffers.update(buffers)


@contextmanager
def number_format(subject: ModelUnderTest, form: NumberFormat) -> Iterator[None]:
    """Compute in a number format."""
    device = subject.device.type
    # The cache of autocast would keep weights that are changed meanwhile.
    mixed = torch.autocast(device, form.dtype, cache_enabled=False) if form.autocast else nullcontext()
    converted = form.dtype != subject.dtype and not form.autocast
    with mixed, changed_weights(subject.modules, lambda x: x.to(form.dtype)) if converted else nullcontext():
        yield


def real_gap(
    subject: ModelUnderTest, one: Callable[[], Tensor], other: Callable[[], Tensor], tolerance: float
) -> Gap | None:
    """The gap between two ways to compute logits [B, N, V], if it exceeds the tolerance and is not rounding."""
    found = gap(one(), other(), tolerance)
    real = found.clear and repeats(subject, lambda: difference(one().double(), other().double()))
    return found if real else None


def compare_case(
    subject: ModelUnderTest, case: Case, one: Callable[[], Tensor], other: Callable[[], Tensor], what: str
) -> None:
    """Raise ``ClaimFails`` if two ways to compute logits [B, N, V] differ by more than rounding."""
    found = real_gap(subject, one, other, FORMATS[case.format].tolerance)
    if found is not None:
        raise found.failure(f"{what}: {found}")


def repeats(subject: ModelUnderTest, compute: Callable[[], Tensor]) -> bool:
    """Whether a difference is about the same whenever all weights move a little.

    Without weights to move it counts as one that repeats.
    """
    if not any(True for module in subject.modules for _ in module.parameters()):
        return True
    device = subject.device.type
    mixed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    found = []
    for seed in range(TRIALS):
        generator = torch.Generator().manual_seed(seed)

        def moved(x: Tensor, generator: torch.Generator = generator) -> Tensor:
            step = max(UNITS * torch.finfo(mixed or x.dtype).eps, LEAST)
            return (x * (1 + step * torch.randn(x.shape, generator=generator).to(x.device))).to(x.dtype)

        with changed_weights(subject.modules, moved):
            found.append(compute().detach().double().flatten())
    all_found = torch.stack(found)
    if not bool(all_found.isfinite().all()):
        return True
    common, size = all_found.mean(0).square().sum(), all_found.square().sum(1).mean()
    return float(common) > REPEATS * float(size)
