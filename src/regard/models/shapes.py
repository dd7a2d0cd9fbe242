"""The shapes of a model's weights, without memory for them."""

import math
import threading
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from regard.errors import UserError
from regard.models.base import Model, ModelConfig

Shapes = Mapping[str, tuple[int, ...]]
LAYERS = 4096  # that any model may have, besides those of its weights: repeated layers have none of their own
WEIGHTS = 20_000  # tensors of a model whose weights are not known
BUFFERS = 2**26  # elements of all buffers that any model may have, besides as many as its weights


class SkipInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: random numbers on the meta device would import torch's compiler, which takes seconds."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


class TooLarge(UserError):
    """More or larger weights than expected."""


def build_on_meta(config: ModelConfig, most: int = WEIGHTS, largest: int | None = None) -> Model:
    """The model without weights: only their shapes.

    It is refused at once if it has more than ``most`` weight tensors, or one with a size above ``largest``.
    """
    count, thread = 0, threading.get_ident()  # hooks are global, and another thread may build a model too

    def watch(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if parameter is None or threading.get_ident() != thread:
            return
        count += 1
        size = max(parameter.shape, default=0)
        if count > most or (largest is not None and size > largest):
            raise TooLarge("the model has more or larger weights than expected; lower its sizes")

    sizes = vars(config).items()
    if any(size > LAYERS + most for name, size in sizes if name.endswith("layers") and isinstance(size, int)):
        raise TooLarge(f"the model has more than {LAYERS + most:,} layers; lower them")
    hook = register_module_parameter_registration_hook(watch)
    try:
        with torch.device("meta"), SkipInit():
            return config.build()
    finally:
        hook.remove()


def fits(config: ModelConfig, stored: Shapes, *, quantized: bool = False) -> bool:
    """Whether the model of ``config`` has weights of the ``stored`` shapes; nothing is allocated.

    ``quantized``: some of them are stored as codes, under other names.

    A config of absurd sizes, such as 10^12 layers, is noticed at once: building stops at the first weight too many.
    """
    largest = max((size for shape in stored.values() for size in shape), default=0)
    largest *= 2 if quantized else 1  # two codes may share a byte
    try:
        model = build_on_meta(config, 4 * len(stored) + 64, largest)  # a tied weight is registered more than once
    except (TooLarge, RuntimeError, OverflowError, MemoryError):  # more elements than 64 bits can count
        return False
    if sum(buffer.numel() for buffer in model.buffers()) > BUFFERS + sum(map(math.prod, stored.values())):
        return False
    return all(stored.get(name, tuple(own.shape)) == tuple(own.shape) for name, own in model.named_parameters())
