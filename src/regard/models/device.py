"""The device that a model runs on: by the name in a config or on the command line, and by its parameters."""

from itertools import chain

import torch
from torch import nn

from regard.errors import UserError


def find_device(name: str, local: int = 0, option: str = "--device") -> torch.device:
    """The device called ``name``, which becomes the current one; "auto" prefers CUDA, then MPS, then the CPU.

    Of several CUDA devices the process with local rank ``local`` uses the device of that number. If the device does not
    exist, the UserError names the ``option`` to change.
    """
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    kind, colon, index = name.partition(":")
    available = counts.get(kind, 0)
    if not available or (colon and not index.isdigit()) or int(index or 0) >= available:
        usable = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"there is no device {name!r} here; choose {option} from: auto, {usable}")
    if kind != "cuda":
        return torch.device(kind)
    number = int(index) if index else local
    if number >= available:
        raise UserError(
            f"there is no device cuda:{number}, only {available} of that kind; start fewer processes per machine or "
            f"choose another {option}"
        )
    torch.cuda.set_device(number)  # our own kernels are launched on the current device
    return torch.device(kind, number)


def parameter_device(model: nn.Module) -> torch.device:
    """The device of the model's parameters, or of its buffers if all of it is quantized."""
    return next(chain(model.parameters(), model.buffers())).device
