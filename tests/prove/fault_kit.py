"""A fault, a sound model, and how both become a ``ModelUnderTest``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from faulty_models import (
    Forgetful,
    ForgetfulConfig,
)
from faulty_torch import (
    LENGTH,
    VOCABULARY,
    Plain,
    UnmaskedForWeights,
    randomized,
)
from torch import nn

from regard.attention import WindowConfig
from regard.models import ConvolutionConfig, GPTConfig
from regard.models.base import Model
from regard.prove import ModelUnderTest

SIZES: dict[str, Any] = {"vocabulary": VOCABULARY, "context": LENGTH, "layers": 2, "width": 16}
LONG = 48  # tokens: enough for the buffer of a window to roll
WINDOW = WindowConfig(size=3)
KERNEL = ConvolutionConfig(**SIZES, kernel=3, zero_init=False)  # the second layer reaches four tokens back


class Fault(NamedTuple):
    """One thing wrong, and the claim that must fail for it."""

    name: str
    claim: str
    about: str
    make: Callable[[], ModelUnderTest]
    listed: bool = True  # before any claim was written


class Healthy(NamedTuple):
    """Nothing wrong: every claim that can be judged must hold."""

    name: str
    make: Callable[[], ModelUnderTest]


def small(kind: type[GPTConfig] = GPTConfig, **changes: Any) -> GPTConfig:
    """A GPT that a test builds in a blink."""
    return kind(**{**SIZES, "heads": 4, "zero_init": False, **changes})


def given(model: Model, length: int = LENGTH, **more: Any) -> ModelUnderTest:
    """A model of this library."""
    return ModelUnderTest(randomized(model), **{"vocabulary": VOCABULARY, "length": length, **more})


def bare(model: Plain | nn.Module, padded: bool = False, **more: Any) -> ModelUnderTest:
    """A model of another library: only its forward pass is known."""
    randomized(model)
    ways = {"padded": model.padded} if padded and isinstance(model, Plain) else {}
    return ModelUnderTest(model, **{"vocabulary": VOCABULARY, "length": LENGTH, **ways, **more})


def asked_for_weights() -> ModelUnderTest:
    model = randomized(UnmaskedForWeights())
    return ModelUnderTest(lambda tokens: model(tokens, weights=True), vocabulary=VOCABULARY, length=LENGTH)


def corrected(kept: bool) -> ModelUnderTest:
    model = small(ForgetfulConfig, kept=kept).build()
    assert isinstance(model, Forgetful)
    model.correction.copy_(torch.linspace(-2, 2, VOCABULARY))  # as after some training
    return given(model)
