"""The shapes of a model's weights, without memory for them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from regard.models.base import Model, ModelConfig

Shapes = Mapping[str, tuple[int, ...]]
LAYERS = 4096  # that any model may have, besides those of its weights: repeated layers have none of their own
BUFFERS = 2**26  # elements of all buffers that any model may have, besides as many as its weights


class SkipInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: random numbers on the meta device would import torch's compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def build_on_meta(config: ModelConfig) -> Model:
    """The model without weights: only their shapes."""
    with torch.device("meta"), SkipInit():
        return config.build()


class _TooLarge(Exception):
    """More or larger weights than expected."""


def fits(config: ModelConfig, stored: Shapes) -> bool:
    """Whether the model of ``config`` has weights of the ``stored`` shapes; nothing is allocated.

    A config of absurd sizes, such as 10^12 layers, is noticed at once: building stops at the first weight too many.
    """
    largest = max((size for shape in stored.values() for size in shape), default=0)
    most, count = 4 * len(stored) + 64, 0  # a tied weight is registered more than once

    def watch(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += parameter is not None
        if count > most or (parameter is not None and max(parameter.shape, default=0) > largest):
            raise _TooLarge

    if any(size > LAYERS + most for name, size in vars(config).items() if name.endswith("layers") and size is not None):
        return False
    hook = register_module_parameter_registration_hook(watch)
    try:
        model = build_on_meta(config)
    except (_TooLarge, RuntimeError, OverflowError, MemoryError):  # more elements than 64 bits can count
        return False
    finally:
        hook.remove()
    if sum(buffer.numel() for buffer in model.buffers()) > BUFFERS + sum(map(math.prod, stored.values())):
        return False
    return all(stored.get(name, tuple(own.shape)) == tuple(own.shape) for name, own in model.named_parameters())
