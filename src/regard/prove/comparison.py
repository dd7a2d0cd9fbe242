"""Comparing logits and gradients: how far apart they may be, and where they first differ."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.prove.registry import ClaimResult, fails, holds, not_applicable

ROUNDING = 1e-4  # of the largest logit in float32: other shapes mean other orders of summation
EXACT = 1e-6  # for equal shapes: what is masked is multiplied by zero, so nothing is left to round
GRADIENTS = 1e-3  # of the largest: a gradient is a sum over every token


class Gap(NamedTuple):
    """The largest difference between two tensors of logits [B, N, V], and where it first exceeds rounding."""

    size: float
    row: int
    position: int
    scale: float  # the largest logit
    clear: bool  # more than rounding

    def __str__(self) -> str:
        return f"row {self.row}, position {self.position}: {self.size:.2g} apart where logits reach {self.scale:.2g}"


def gap(one: Tensor, other: Tensor, rounding: float = ROUNDING) -> Gap:
    """Compare logits [B, N, V]. NaN differs from everything."""
    one, other = one.detach().double(), other.detach().double()
    if one.shape != other.shape:
        raise ValueError(f"logits of the shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared")
    if not one.numel():
        return Gap(0.0, 0, 0, 0.0, False)
    apart = (one - other).abs().nan_to_num(torch.inf, torch.inf).amax(-1)  # [B, N]
    finite = torch.cat((one.flatten(), other.flatten()))
    finite = finite[finite.isfinite()]
    scale = float(finite.abs().max()) if len(finite) else 0.0
    wrong = (apart > rounding * max(1.0, scale)).nonzero()
    row, position = wrong[wrong[:, 1].argmin()].tolist() if len(wrong) else (0, 0)
    return Gap(float(apart.max()), row, position, scale, bool(len(wrong)))


class LargestGap:
    """The largest gap of several comparisons; ``description`` is that of the first clear one."""

    def __init__(self) -> None:
        self.size, self.count, self.description = 0.0, 0, ""

    def add(self, one: Tensor, other: Tensor, case: str, rounding: float = ROUNDING) -> bool:
        """Compare logits and return True if they differ."""
        found = gap(one, other, rounding)
        self.count += 1
        self.size = max(self.size, found.size)
        if found.clear and not self.description:
            self.description = f"{case}: {found}"
        return found.clear

    def add_gradients(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor], case: str) -> None:
        """Compare gradients by the name of their weight, relative to the largest of ``other``; none is zero."""
        largest = max((float(g.abs().max()) for g in other.values()), default=0.0) or 1.0
        for name in {**one, **other}:
            apart = torch.as_tensor(one.get(name, 0) - other.get(name, 0)).abs().max()
            share = float(apart.nan_to_num(torch.inf)) / largest
            self.size = max(self.size, share)
            if not share <= GRADIENTS and not self.description:
                self.description = f"{case} at {name} is {share:.2g} of the largest apart"

    def result(self, evidence: str, exempt: Sequence[str] = ()) -> ClaimResult:
        """The claim holds with ``evidence``, or fails; what ``exempt`` modules declare not to hold cannot fail."""
        if self.description and exempt:
            return not_applicable(f"declared not to hold by {', '.join(exempt)}; found: {self.description}")
        return fails(self.description) if self.description else holds(f"{evidence}: at most {self.size:.1g} apart")


def gradients(module: nn.Module, total: Tensor) -> dict[str, Tensor]:
    """The gradients of ``total`` by the name of the weight; weights without one are left out."""
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    if not weights or not total.requires_grad:
        return {}
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: g for name, g in zip(weights, found, strict=True) if g is not None}
