"""Every kind of position, and a small model with any of them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor

from regard.models import GPT, GPTConfig
from regard.nn import PositionConfig
from regard.nn.positions.position import (
    AlibiConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5Config,
)
from regard.nn.positions.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)

CONTEXT = 24
SCALINGS: dict[str, ScalingConfig] = {
    "none": NoScalingConfig(),
    "linear": LinearScalingConfig(factor=4.0),
    "ntk": NTKScalingConfig(factor=4.0),
    "dynamic": DynamicScalingConfig(factor=2.0, length=4 * CONTEXT),
    "yarn": YarnScalingConfig(factor=4.0, fast=2.0),
    "llama3": Llama3ScalingConfig(factor=4.0, fast=2.0),
}
RELATIVE: dict[str, PositionConfig] = {
    **{f"rotary, {name}": RotaryConfig(scaling=scaling) for name, scaling in SCALINGS.items()},
    "alibi": AlibiConfig(),
    "relative": RelativeConfig(distance=5),
    "t5": T5Config(buckets=6, furthest=20),
}
POSITIONS: dict[str, PositionConfig] = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedPositionConfig(),
    **RELATIVE,
}
seeds = st.integers(0, 2**32 - 1)


def model(position: PositionConfig, **changes: Any) -> GPT:
    """A small one with random numbers everywhere, in float64."""
    sizes: dict[str, Any] = {"vocabulary": 7, "context": CONTEXT, "layers": 2, "heads": 4, "kv_heads": 2, "width": 32}
    made, g = GPTConfig(**{**sizes, "position": position, "zero_init": False, **changes}).build(), torch.Generator()
    g.manual_seed(1)
    for name, parameter in made.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.5
        parameter.data = float(name.endswith("gain")) + spread * torch.randn(parameter.shape, generator=g)
    return made.double().eval()


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 7, (rows, length), generator=torch.Generator().manual_seed(seed))
