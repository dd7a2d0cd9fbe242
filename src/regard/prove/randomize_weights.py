"""Random weights for tests: at initialization much of a model is zero or tiny, and so would a leak be."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def randomize_weights(model: Module, seed: int = 5) -> Module:
    """The model with random weights everywhere: gains around 1, biases around 0, matrices that keep a variance of 1."""
    generator = torch.Generator().manual_seed(seed)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    norms = [part for part in model.modules() if "norm" in type(part).__name__.lower()]
    gains = {id(weight) for part in norms for name, weight in part.named_parameters(recurse=False) if name == "weight"}
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            continue
        fan = max(1, weight[0].numel()) if weight.ndim > 1 else 1
        spread = 1.0 if id(weight) in tables else fan**-0.5 if weight.ndim > 1 else 0.2
        gain = (id(weight) in gains and weight.ndim == 1) or name.endswith("gain")
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * spread
        weight.copy_((drawn + float(gain)).to(weight))
    return model
