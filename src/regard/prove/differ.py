"""When two answers are the same: how far apart they may be, and where they first are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROUNDING = 1e-4  # of the largest logit in float32: other shapes mean other orders of summation
EXACT = 1e-6  # the same where shapes are equal: what is not seen is multiplied by zero, and nothing is left to round


class Gap(NamedTuple):
    """The largest difference between two answers [B, N, V], and the first place where it is more than rounding."""

    size: float
    row: int
    place: int
    scale: float  # the largest logit
    clear: bool  # whether it is more than rounding

    def __str__(self) -> str:
        return f"row {self.row}, place {self.place}: {self.size:.2g} apart where logits reach {self.scale:.2g}"


def gap(one: Tensor, other: Tensor, rounding: float = ROUNDING) -> Gap:
    """How far apart two answers are; NaN is apart from everything."""
    one, other = one.detach().double(), other.detach().double()
    if one.shape != other.shape:
        raise ValueError(f"answers of the shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared")
    if not one.numel():
        return Gap(0.0, 0, 0, 0.0, False)
    apart = (one - other).abs().nan_to_num(torch.inf, torch.inf).amax(-1)  # [B, N]
    finite = torch.cat((one.flatten(), other.flatten()))
    finite = finite[finite.isfinite()]
    scale = float(finite.abs().max()) if len(finite) else 0.0
    wrong = (apart > rounding * max(1.0, scale)).nonzero()
    row, place = wrong[wrong[:, 1].argmin()].tolist() if len(wrong) else (0, 0)
    return Gap(float(apart.max()), row, place, scale, bool(len(wrong)))


class Worst:
    """The largest gap of several comparisons, and of the first clear one in which case it was."""

    def __init__(self) -> None:
        self.size, self.count, self.found = 0.0, 0, ""

    def add(self, one: Tensor, other: Tensor, case: str, rounding: float = ROUNDING) -> bool:
        """Compare; whether there is something to tell."""
        here = gap(one, other, rounding)
        self.count += 1
        self.size = max(self.size, here.size)
        if here.clear and not self.found:
            self.found = f"{case}: {here}"
        return here.clear


def first_module(module: nn.Module, call: Callable[[Tensor], Any], texts: tuple[Tensor, Tensor], upto: int) -> str:
    """The first part inside a model whose output differs before place ``upto`` between two texts; "" if none is found.

    Parts are compared in the order in which they finish; only outputs [B, N, C] can be.
    """
    length = texts[0].shape[1]
    one, other = (_outputs(module, lambda text=text: call(text)) for text in texts)
    for (name, before), (same, after) in zip(one, other, strict=False):
        if not name or name != same or before.shape != after.shape or before.ndim != 3 or before.shape[1] != length:
            continue
        if gap(before[:, :upto], after[:, :upto], EXACT).clear:
            return name
    return ""


@torch.no_grad()
def _outputs(module: nn.Module, call: Callable[[], Any]) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple | list) and out else out
            if isinstance(first, Tensor) and first.is_floating_point():
                found.append((name, first.detach().clone()))

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in module.named_modules()]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return found
