"""What a model's output depends on: later tokens, padding, the order of tokens.

`prove` and the doctor change tokens, run the model again, and compare the outputs of every module: this file holds what
both share.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

import torch
from torch import Tensor, nn

Outputs = list[tuple[str, Tensor]]  # module name and output [B, N, ...], in order of execution


Hook = Callable[..., Tensor | None]  # (module, inputs, output); a result that is not None replaces the output


class ForwardEnded(Exception):
    """Ends a forward pass after the last module whose output is needed."""


def forward_hooks(hooks: Iterable[tuple[nn.Module, Hook]]) -> ExitStack:
    """Register forward hooks; the context that is returned removes them."""
    stack = ExitStack()
    for module, hook in hooks:
        stack.callback(module.register_forward_hook(hook).remove)
    return stack


def record_outputs(
    model: nn.Module, forward: Callable[[], object], shape: tuple[int, ...], only: str | None = None
) -> Outputs:
    """The output of every module that has one per token, for tokens of ``shape`` [B, N], during ``forward()``.

    With ``only``, the output of that module alone; the forward pass ends there.
    """
    outputs: Outputs = []

    def record(name: str) -> Hook:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            x = _per_token(first, *shape) if isinstance(first, Tensor) and first.is_floating_point() else None
            if x is not None:
                outputs.append((name, x.detach().clone()))
            if only is not None:
                raise ForwardEnded

        return hook

    modules = [(name, module) for name, module in model.named_modules() if name and only in (None, name)]
    with forward_hooks((module, record(name)) for name, module in modules), suppress(ForwardEnded):
        forward()
    return outputs


def _per_token(x: Tensor, rows: int, length: int) -> Tensor | None:
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
