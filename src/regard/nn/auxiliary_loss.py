"""Auxiliary losses: terms that a layer adds to the training loss, such as the load balance of experts.

A layer's output is one tensor. A layer with an auxiliary loss subclasses ``AuxiliaryLossLayer`` and calls ``record`` in
its forward pass during training; the task calls ``collect`` to run the forward pass and gather what was recorded.
Nothing is kept outside of ``collect``, so a forward pass that activation checkpointing repeats records nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError

T = TypeVar("T")


class AuxiliaryLoss(NamedTuple):
    """The auxiliary losses of one forward pass through one layer."""

    losses: dict[str, tuple[float, Tensor]]  # name: (factor in the loss, 0-d value that gradients flow through)
    details: dict[str, Tensor]  # metrics without gradients: means over the tokens of the pass


class AuxiliaryLossLayer(nn.Module):
    """Base class of layers with auxiliary losses. These losses are not additive over the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.collecting = False
        self.recorded: tuple[AuxiliaryLoss, ...] = ()

    def record(self, loss: AuxiliaryLoss) -> None:
        """Record the auxiliary losses of this forward pass. Ignored outside of ``collect``."""
        if self.collecting:
            self.recorded = (*self.recorded, loss)


def auxiliary_layers(model: nn.Module) -> list[AuxiliaryLossLayer]:
    """All layers of ``model`` with auxiliary losses, in module order."""
    return [module for module in model.modules() if isinstance(module, AuxiliaryLossLayer)]


def collect(model: nn.Module, forward: Callable[[], T]) -> tuple[T, list[AuxiliaryLoss]]:
    """Run ``forward`` and return its result and the auxiliary losses recorded meanwhile (none in evaluation mode)."""
    layers = auxiliary_layers(model) if model.training else []
    for layer in layers:
        layer.collecting, layer.recorded = True, ()
    result = forward()
    losses = [loss for layer in layers for loss in layer.recorded]
    for layer in layers:
        layer.collecting, layer.recorded = False, ()
    for loss in losses:
        for name, (_, value) in loss.losses.items():
            if torch.is_grad_enabled() and not value.requires_grad:
                raise UserError(
                    f"the auxiliary loss {name!r} has no gradient here, because its block does not record the autograd "
                    f"graph; set --model.feedforward.{name} 0, or use another --model.block"
                )
    return result, losses
