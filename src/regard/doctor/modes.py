"""Contexts in which the doctor runs the model of a training without a trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from regard.train.seeding import seed_generators


@contextmanager
def training_mode(model: nn.Module, device: torch.device, seed: int = 0) -> Iterator[None]:
    """A context for passes in training mode without gradients, with the random numbers of ``seed``.

    Modules keep the modes that they train in. On exit, modes, buffers and random states are as before.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with isolated(device), torch.no_grad():
        seed_generators(seed, device)
        if not model.training:
            model.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for buffer, value in buffers:
                buffer.copy_(value)


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """A context after which the random states are as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
