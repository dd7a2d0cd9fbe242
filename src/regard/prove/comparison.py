"""Comparing logits, gradients and the outputs of modules: how far apart they may be, and where they first differ.

`prove` and the doctor change tokens, run the model again, and compare: both find what an output depends on (later
tokens, padding, the order of tokens) by the functions of this file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.prove.registry import ClaimFails, ClaimResult, NotFinite, holds

ROUNDING = 1e-4  # of the largest logit in float32: other shapes mean other orders of summation
GRADIENTS = 1e-3  # of the largest: a gradient is a sum over every token
Outputs = list[tuple[str, Tensor]]  # module name and output [B, N, ...], in order of execution
Hook = Callable[..., Tensor | None]  # (module, inputs, output); a result that is not None replaces the output


class Gap(NamedTuple):
    """The largest difference between two tensors of logits [B, N, V], and where it first exceeds rounding."""

    size: float
    row: int
    position: int
    scale: float  # the largest logit
    clear: bool  # more than rounding

    def __str__(self) -> str:
        return f"row {self.row}, position {self.position}: {self.size:.2g} apart where logits reach {self.scale:.2g}"

    def failure(self, evidence: str) -> ClaimFails:
        """The failure of a claim that this gap shows."""
        return ClaimFails(evidence) if isfinite(self.size) else NotFinite(evidence)


def gap(one: Tensor, other: Tensor, rounding: float = ROUNDING) -> Gap:
    """Compare logits [B, N, V]. NaN differs from everything, an infinite logit from all but itself."""
    one, other = one.detach().double(), other.detach().double()
    if one.shape != other.shape:
        raise ValueError(f"logits of the shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared")
    if one.ndim == 2:  # of whole rows
        one, other = one[:, None], other[:, None]
    if not one.numel():
        return Gap(0.0, 0, 0, 0.0, False)
    apart = difference(one, other).abs().amax(-1)  # [B, N]
    finite = torch.cat((one.flatten(), other.flatten()))
    finite = finite[finite.isfinite()]
    scale = float(finite.abs().max()) if len(finite) else 0.0
    wrong = (apart > rounding * max(1.0, scale)).nonzero()
    row, position = wrong[wrong[:, 1].argmin()].tolist() if len(wrong) else (0, 0)
    return Gap(float(apart.max()), row, position, scale, bool(len(wrong)))


def difference(one: Tensor, other: Tensor) -> Tensor:
    """``one - other``; 0 where both are the same infinity (a token that is forbidden), infinite where one is NaN."""
    return torch.where(one == other, 0.0, (one - other).nan_to_num(torch.inf, torch.inf, -torch.inf))


class LargestGap:
    """The largest gap of several comparisons. The claim fails at the first clear one, unless modules are exempt."""

    def __init__(self, exempt: Sequence[str] = ()) -> None:
        self.size, self.count, self._exempt = 0.0, 0, exempt

    def add(self, one: Tensor, other: Tensor, case: str) -> None:
        """Compare logits [B, N, V]."""
        found = gap(one, other)
        self.count += 1
        self._note(found.size, found.clear, f"{case}: {found}")

    def add_gradients(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor], case: str) -> None:
        """Compare gradients by the name of their weight, relative to the largest of ``other``; none is zero."""
        largest = max((float(g.abs().max()) for g in other.values()), default=0.0) or 1.0
        for name in {**one, **other}:
            apart = torch.as_tensor(one.get(name, 0) - other.get(name, 0)).abs().max()
            share = float(apart.nan_to_num(torch.inf)) / largest
            self._note(share, not share <= GRADIENTS, f"{case} at {name} is {share:.2g} of the largest apart")

    def _note(self, size: float, clear: bool, found: str) -> None:
        self.size = max(self.size, size)
        if clear and self._exempt:
            raise UserError(f"declared not to hold by {', '.join(self._exempt)}; found: {found}")
        if clear:
            raise ClaimFails(found)

    def result(self, evidence: str) -> ClaimResult:
        """The claim holds, since no gap was clear."""
        return holds(f"{evidence}: at most {self.size:.1g} apart")


def gradients(module: nn.Module, total: Tensor) -> dict[str, Tensor]:
    """The gradients of ``total`` by the name of the weight; weights without one are left out."""
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    if not weights or not total.requires_grad:
        return {}
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True, retain_graph=True)  # terms share it
    return {name: g for name, g in zip(weights, found, strict=True) if g is not None}


class ForwardEnded(Exception):
    """Ends a forward pass after the last module whose output is needed."""


def forward_hooks(hooks: Iterable[tuple[nn.Module, Hook]]) -> ExitStack:
    """Register forward hooks; the context that is returned removes them."""
    stack = ExitStack()
    for module, hook in hooks:
        stack.callback(module.register_forward_hook(hook).remove)
    return stack


def record_outputs(
    model: nn.Module,
    forward: Callable[[], object],
    shape: tuple[int, ...],
    only: str | None = None,
    keep: int | None = None,
) -> Outputs:
    """The output of every module that has one per token, for tokens of ``shape`` [B, N], during ``forward()``.

    With ``only``, the output of that module alone; the forward pass ends there. With ``keep``, of the first rows only.
    """
    outputs: Outputs = []

    def record(name: str) -> Hook:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            x = per_token(first, *shape) if isinstance(first, Tensor) and first.is_floating_point() else None
            if x is not None:
                outputs.append((name, x[:keep].detach().clone()))
            if only is not None:
                raise ForwardEnded

        return hook

    modules = [(name, module) for name, module in model.named_modules() if name and only in (None, name)]
    with forward_hooks((module, record(name)) for name, module in modules), suppress(ForwardEnded):
        forward()
    return outputs


def per_token(x: Tensor, rows: int, length: int) -> Tensor | None:
    """[B, N, ...] of [B, N, C], [B, N, H, D] or [B, H, N, D]; None for other shapes and for ambiguous ones."""
    axes = [axis for axis in (1, 2) if x.ndim > axis + 1 and x.shape[axis] == length]
    return x.transpose(1, axes[0]) if x.ndim in (3, 4) and len(x) == rows and len(axes) == 1 else None


def relative_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, divided by the largest absolute value of ``one``; 0 for different shapes."""
    if one.shape != other.shape or not one.numel():
        return 0.0
    size = float(one.float().abs().amax())
    return float((one.float() - other.float()).abs().amax()) / size if size > 0 else 0.0


def first_difference(
    before: Outputs, after: Outputs, select: Callable[[Tensor], Tensor], tolerance: float
) -> tuple[str, float] | None:
    """The first module whose selected outputs differ by more than ``tolerance`` of their size, and by how much."""
    for (name, one), (same, other) in zip(before, after, strict=False):
        if name == same and one.shape == other.shape:
            difference = relative_difference(select(one), select(other))
            if difference > tolerance:
                return name, difference
    return None


def reverse_context(tokens: Tensor) -> Tensor:
    """Tokens [B, N] with all but the last one in reverse order."""
    return torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
