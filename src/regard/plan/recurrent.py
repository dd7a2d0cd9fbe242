"""What cuDNN's recurrent layers cost, in a trace: their fake tensors lack the memory that the kernel keeps.

The stand-in is one operation forward and one backward, for all layers of a module of ``torch.nn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

#: Numbers per token and unit that the kernel keeps for the backward pass, and that its backward pass needs for a while.
KEPT, WORKING = 6, 5
KINDS = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}  # tensors of a state


@torch.library.custom_op("regard_plan::recurrent", mutates_args=())
def recurrent(x: Tensor, weights: Sequence[Tensor], hidden: Tensor, directions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last state and what is kept: of the right shapes, with no numbers."""
    width = hidden.shape[-1]
    kept = KEPT * x.shape[:-1].numel() * width * hidden.shape[0]
    return x.new_zeros(*x.shape[:-1], directions * width), torch.zeros_like(hidden), x.new_zeros(kept)


@torch.library.custom_op("regard_plan::recurrent_back", mutates_args=())
def recurrent_back(
    grad: Tensor, x: Tensor, weights: Sequence[Tensor], hidden: Tensor, kept: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Gradients of the right shapes, and working memory."""
    working = x.new_zeros(WORKING * x.shape[:-1].numel() * hidden.shape[-1])
    return torch.zeros_like(x), [torch.zeros_like(weight) for weight in weights], working


recurrent.register_fake(recurrent._init_fn)
recurrent_back.register_fake(recurrent_back._init_fn)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weights, hidden, _ = inputs
    ctx.save_for_backward(x, hidden, output[2], *weights)


def _back(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor, list[Tensor], None, None]:
    x, hidden, kept, *weights = ctx.saved_tensors
    grads = torch.ops.regard_plan.recurrent_back(grad, x, weights, hidden, kept)
    return grads[0], grads[1], None, None


recurrent.register_autograd(_back, setup_context=_save)


def recurrent_flops(x: Tensor, weights: Sequence[Tensor], *_: object, **__: object) -> int:
    """Two per weight of a matrix and token."""
    return 2 * x.shape[:-1].numel() * sum(weight.numel() for weight in weights if weight.ndim == 2)


def recurrent_back_flops(grad: Tensor, x: Tensor, weights: Sequence[Tensor], *_: object, **__: object) -> int:
    """Twice those of the forward pass."""
    return 2 * recurrent_flops(x, weights)


def recurrent_steps(x: Tensor, weights: Sequence[Tensor], hidden: Tensor, *_: object) -> int:
    """Steps in sequence; ``x``: [B, N, C]."""
    return x.shape[1] * hidden.shape[0]


def recurrent_back_steps(grad: Tensor, x: Tensor, weights: Sequence[Tensor], hidden: Tensor, *_: object) -> int:
    """Those of the backward pass."""
    return recurrent_steps(x, weights, hidden)


@contextmanager
def recurrent_counted(device: torch.device) -> Iterator[None]:
    """Run the stand-in instead of the kernels on a GPU."""
    kernels = nn.modules.rnn._VF
    found = {kind: getattr(kernels, kind) for kind in KINDS}
    if device.type == "cuda":
        for kind, kernel in found.items():
            setattr(kernels, kind, _standing_in(kernel, states=KINDS[kind]))
    try:
        yield
    finally:
        for kind, kernel in found.items():
            setattr(kernels, kind, kernel)


def _standing_in(kernel: Callable[..., Any], states: int) -> Callable[..., Any]:
    def run(x: Tensor, state: Any, weights: Any, *given: Any) -> Any:
        if len(given) < 6 or x.ndim != 3:  # packed rows of different lengths, or a single row
            return kernel(x, state, weights, *given)
        *_, bidirectional, batch_first = given
        hidden = state if isinstance(state, Tensor) else state[0]
        if torch.is_autocast_enabled(x.device.type):  # the kernel gets copies of its weights
            dtype = torch.get_autocast_dtype(x.device.type)
            x, hidden, weights = x.to(dtype), hidden.to(dtype), [weight.to(dtype) for weight in weights]
        x = x if batch_first else x.transpose(0, 1)
        out, last, _ = torch.ops.regard_plan.recurrent(x, list(weights), hidden, 1 + bidirectional)
        return out if batch_first else out.transpose(0, 1), *(last for _ in range(states))

    return run
