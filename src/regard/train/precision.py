"""Number formats: autocast, loss scaling for float16, and a probe for CPUs that advertise formats they cannot run."""

import functools
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from regard.errors import UserError

PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]

_PROBE = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64))
with torch.autocast("cpu", torch.{name}):
    loss = model(torch.randn(128, 64)).square().sum()
loss.backward()
"""


class Scaler:
    """Dynamic loss scaling for float16, whose smallest gradients would otherwise be rounded to zero.

    The scale is halved, and the update skipped, when a gradient overflows; it is doubled after ``PATIENCE`` updates
    without overflow (Micikevicius et al. 2018). In other formats it stays 1. torch's GradScaler keeps the scale on the
    device and a state per torch optimizer; here the gradient norm over all ranks is known anyway, and the state is two
    numbers.
    """

    PATIENCE = 2000
    SMALLEST = 2.0**-14

    def __init__(self, active: bool):
        self.active = active
        self.scale = 2.0**16 if active else 1.0
        self.good = 0

    def update(self, overflow: bool) -> None:
        """Adapt the scale after a step."""
        if not self.active:
            return
        if overflow:
            self.scale, self.good = self.scale / 2, 0
        else:
            self.good += 1
            if self.good == self.PATIENCE:
                self.scale, self.good = self.scale * 2, 0

    @property
    def exhausted(self) -> bool:
        """Whether the scale is too small to be the cause of an overflow."""
        return self.scale < self.SMALLEST or not self.active

    def state(self) -> dict[str, float]:
        """The state for a checkpoint."""
        return {"scale": self.scale, "good": self.good}

    def load(self, state: Mapping[str, float]) -> None:
        """Load a ``state()``."""
        self.scale, self.good = float(state["scale"]), int(state["good"])


class Precision:
    """A number format on a device; checked on construction."""

    def __init__(self, name: PrecisionName, device: torch.device):
        if name == "auto":
            name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
        self.name = name
        self.device = device
        self.dtype: torch.dtype = getattr(torch, name)
        if device.type == "cpu" and name != "float32":
            refusal = probe(name)
            if refusal:
                raise UserError(f"this CPU cannot multiply {name} matrices ({refusal}); use --train.precision float32")

    def autocast(self) -> AbstractContextManager[object]:
        """The context for forward passes."""
        if self.name == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self) -> Scaler:
        """The initial loss scale."""
        return Scaler(self.name == "float16")


@functools.cache
def probe(name: str) -> str | None:
    """Why this CPU cannot train in the format ``name``, tried in a child process; None if it can.

    Some virtual machines advertise instructions (AMX) that end the process with SIGILL when used.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(name=name)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"a trial ended by signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"a trial failed: {last}"
