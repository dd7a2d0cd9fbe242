"""Weights on which a fault would show. At its start much of a model is zero or tiny, and a leak with it."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def lively(model: Model, seed: int = 5) -> Model:
    """The model with random weights everywhere: gains about 1, biases about 0, matrices that keep a variance of 1."""
    generator = torch.Generator().manual_seed(seed)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    gains = {id(part.weight) for part in model.modules() if _is_norm(part)}
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            continue
        fan = max(1, weight[0].numel()) if weight.ndim > 1 else 1
        spread = 1.0 if id(weight) in tables else fan**-0.5 if weight.ndim > 1 else 0.2
        gain = id(weight) in gains or name.endswith("gain")
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * spread
        weight.copy_((drawn + float(gain)).to(weight))
    return model


def _is_norm(part: nn.Module) -> bool:
    weight = getattr(part, "weight", None)
    return "norm" in type(part).__name__.lower() and isinstance(weight, torch.Tensor) and weight.ndim == 1
