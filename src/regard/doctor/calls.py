"""Calls of the modules of a model: recorded in one pass, compared between two models."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.prove.comparison import forward_hooks


class ModuleCall(NamedTuple):
    """One call of a module."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    output: Tensor  # the first tensor that it returns


def record_calls(model: nn.Module, forward: Callable[[], object]) -> list[ModuleCall]:
    """The calls of all modules during ``forward()``, in order of execution."""
    calls: list[ModuleCall] = []

    def note(name: str, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor) and first.is_floating_point():
            given = tuple(x.detach().clone() for x in inputs if isinstance(x, Tensor))
            calls.append(ModuleCall(name, module, given, first.detach().clone()))

    modules = [(name, module) for name, module in model.named_modules() if name]
    with forward_hooks((module, lambda *call, n=name: note(n, *call)) for name, module in modules):
        forward()
    return calls


def difference(one: Tensor, other: Tensor) -> float:
    """The norm of the difference relative to the larger norm; infinite for other shapes."""
    if one.shape != other.shape:
        return torch.inf
    one, other = one.float(), other.float()
    size = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / size if size > 0 else 0.0


def projection(one: Tensor, other: Tensor) -> float:
    """The factor of ``other`` that is nearest to ``one``."""
    one, other = one.float(), other.float()
    return float((one * other).sum() / other.square().sum().clamp(min=1e-30))


def describe(ours: ModuleCall, theirs: ModuleCall) -> str:
    """How the output of one call differs from the expected one."""
    if ours.output.shape != theirs.output.shape:
        return f"its output has the shape {list(ours.output.shape)}, not {list(theirs.output.shape)}"
    if ours.output.dtype != theirs.output.dtype:
        return f"its output is {ours.output.dtype}, not {theirs.output.dtype}"
    got, want = ours.output.float(), theirs.output.float()
    inputs = [x.float() for x in ours.inputs if x.shape == got.shape]
    if not got.any():
        return "its output is zero"
    if any(difference(got, x) < 1e-3 for x in inputs):
        return "its output is its input: the layer does nothing"
    if any(difference(got, want - x) < 1e-2 for x in inputs):
        return "its output lacks its input: the residual connection is missing"
    ratio = projection(got, want)
    if difference(got, ratio * want) < 1e-2:
        return f"its output is {ratio:.3g} times the right one"
    return _where_wrong(got, want)


def _where_wrong(got: Tensor, want: Tensor) -> str:
    """The axis along which only some entries differ."""
    names = {
        2: ("rows", "channels"),
        3: ("rows", "positions", "channels"),
        4: ("rows", "heads", "positions", "channels"),
    }
    wrong = (got - want).abs() > 1e-3 * want.abs().max()
    for axis, name in enumerate(names.get(got.ndim, ())):
        rest = [one for one in range(got.ndim) if one != axis]
        places = wrong.amax(rest).nonzero().flatten().tolist()
        if len(places) < 0.9 * got.shape[axis]:
            few = ", ".join(map(str, places[:4])) + (" ..." if len(places) > 4 else "")
            return f"{len(places)} of its {got.shape[axis]} {name} differ ({few})"
    return "its output is another one"
