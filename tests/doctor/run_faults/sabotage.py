"""Changes to an engine before its first step that several groups of faults use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Softmax
from regard.data import TextBatch
from regard.models import ConvolutionConfig, RecurrentConfig
from regard.nn.experts.moe import MixtureOfExperts
from regard.train.engine import Engine
from run_faults.kit import Sabotage, changed

GRU = RecurrentConfig(cell="gru", context=32, layers=2, width=32)
CONVOLUTION = ConvolutionConfig(context=32, layers=4, width=32, cycle=4, unit="relu2", zero_init=False)
SKIP = -1  # a target that does not count
LSTM = RecurrentConfig(cell="lstm", context=32, layers=2, width=64)


def softmax(engine: Engine, block: int) -> Softmax:
    """The mechanism of one layer."""
    found = engine.model.get_submodule(f"blocks.{block}.attention.mechanism")
    assert isinstance(found, Softmax)
    return found


def parameter(path: str, change: Callable[[Tensor], Any]) -> Sabotage:
    """Change one parameter in place."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        change(engine.model.get_parameter(path))

    return sabotage


def changed_output(path: str, change: Callable[[Tensor], Tensor]) -> Sabotage:
    """What one module gives passes through `change`."""

    def sabotage(engine: Engine) -> None:
        def after(module: nn.Module, given: Any, out: Tensor) -> Tensor:
            return change(out)

        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def mixtures(engine: Engine) -> list[MixtureOfExperts]:
    """All mixtures of a model."""
    return [module for module in engine.model.modules() if isinstance(module, MixtureOfExperts)]


def planted(number: int, token: Callable[[Engine], int]) -> Sabotage:
    """One token of one batch is another."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        if position != number:
            return batch
        inputs = batch.inputs.clone()
        inputs[0, 3] = token(engine)
        return batch._replace(inputs=inputs)

    return changed(change)
