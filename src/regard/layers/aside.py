"""Asides: what a layer has to say beside its output, such as how evenly it uses its experts.

A layer's output is one tensor, and blocks pass on nothing else. A layer that also wants a say in the loss is an
``Aside``: in training it calls ``tell`` in its forward pass, and whoever makes the loss asks all of them afterwards
(``hear``, which tasks call for every model). Nothing is kept outside of ``hear``: a pass repeated in the backward pass,
where activations are recomputed, tells nobody, and does the same work all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import UserError

T = TypeVar("T")


class Said(NamedTuple):
    """One aside of one pass through one layer."""

    losses: dict[str, tuple[float, Tensor]]  # name: (factor in the loss, 0-d value that gradients flow through)
    details: dict[str, Tensor]  # numbers for a person, without gradients: means over the tokens of the pass


class Aside(nn.Module):
    """Base of layers with something to add to the training loss. What they say does not add up over a batch's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.listening = False
        self.said: tuple[Said, ...] = ()

    def tell(self, said: Said) -> None:
        """Call it once in a forward pass, in training; it is kept if anyone listens."""
        if self.listening:
            self.said = (*self.said, said)


def asides(model: nn.Module) -> list[Aside]:
    """Every layer of a model that may have something to say, in the order of the model."""
    return [module for module in model.modules() if isinstance(module, Aside)]


def hear(model: nn.Module, work: Callable[[], T]) -> tuple[T, list[Said]]:
    """``work()``, and what the model's layers said meanwhile: nothing in evaluation."""
    speakers = asides(model) if model.training else []
    for speaker in speakers:
        speaker.listening, speaker.said = True, ()
    result = work()
    heard = [said for speaker in speakers for said in speaker.said]
    for speaker in speakers:
        speaker.listening, speaker.said = False, ()
    for said in heard:
        for name, (_, value) in said.losses.items():
            if torch.is_grad_enabled() and not value.requires_grad:
                raise UserError(
                    f"the loss {name!r} of a layer has no gradient here, because its block keeps no record of it; "
                    f"set --model.feedforward.{name} 0, or use another --model.block"
                )
    return result, heard
