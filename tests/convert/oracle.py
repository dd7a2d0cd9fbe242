"""Small random models of `transformers` as oracles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """`transformers` casts norms, positions and softmax to float32 whatever the model's type; here it does not.

    So a float64 model is compared in float64.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(torch.float64 if one is torch.float32 else one for one in args)
        kwargs = {name: torch.float64 if one is torch.float32 else one for name, one in (kwargs or {}).items()}
        if func is torch.Tensor.float:
            return args[0].double()
        return func(*args, **kwargs)


@torch.no_grad()
def randomized(model: Any, seed: int = 0) -> Any:
    """Every weight away from its initial value, so that no term hides behind a zero or a one."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.add_(0.2 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model.eval()


def in_float64(make: Callable[[], Any], weights: torch.nn.Module) -> Callable[..., Any]:
    """The model that ``make`` builds with the weights of another, computing in float64 throughout.

    It is built again: frequencies are computed when a model is built.
    """
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():
            wide = make().double().eval()
    finally:
        torch.set_default_dtype(torch.float32)
    wide.load_state_dict(weights.state_dict())

    def run(*inputs: Any, **options: Any) -> Any:
        with Wide(), torch.no_grad():
            return wide(*inputs, **options)

    return run
