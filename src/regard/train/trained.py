"""Which parameters are trained, and at which rate: a choice of its own, whatever the weights start from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from regard.config import Choice, option
from regard.errors import UserError
from regard.models import Model


class TrainedConfig(Choice):
    """Which parameters are trained."""

    def prepare(self, model: Model) -> None:
        """Freeze parameters of ``model``, or add some, after its weights were loaded. Default: train all of them."""

    def rates(self, model: Model) -> dict[nn.Parameter, float]:
        """A factor of the learning rate for each parameter that has one; the others have 1."""
        return {}


@dataclass(frozen=True)
class AllTrainedConfig(TrainedConfig, kind="all"):
    """All parameters, at the same learning rate."""


@dataclass(frozen=True)
class FrozenConfig(TrainedConfig, kind="frozen"):
    """The embeddings and the first blocks keep their weights."""

    blocks: int | None = option(None, "how many blocks are frozen; default: all, only the head is trained")

    def check(self) -> None:
        if self.blocks is not None and self.blocks < 0:
            raise ValueError(f"blocks must be at least 0, not {self.blocks}")

    def prepare(self, model: Model) -> None:
        levels = depths(model)
        if self.blocks is not None and self.blocks > len(model.blocks):
            raise UserError(f"{self.blocks} blocks cannot be frozen: the model has {len(model.blocks)}")
        frozen = len(model.blocks) if self.blocks is None else self.blocks
        for parameter in model.parameters():
            parameter.requires_grad_(levels[parameter] > frozen)


@dataclass(frozen=True)
class LayerwiseConfig(TrainedConfig, kind="layerwise"):
    """Each block learns slower than the next one above it (Howard and Ruder 2018, sec. 3.2)."""

    decay: float = option(0.9, "the learning rate of a block, as a share of that of the block above it")

    def check(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}")

    def rates(self, model: Model) -> dict[nn.Parameter, float]:
        top = len(model.blocks) + 1
        return {parameter: self.decay ** (top - depth) for parameter, depth in depths(model).items()}


def depths(model: Model) -> dict[nn.Parameter, int]:
    """0 for the embeddings, 1, 2 ... for the blocks, and one more for the last norm and the head."""
    found = dict.fromkeys(model.parameters(), 0)
    tops = [*model.head_modules(), *([model.norm] if model.residual_blocks() else [])]
    found |= {parameter: len(model.blocks) + 1 for module in tops for parameter in module.parameters()}
    for number, block in enumerate(model.blocks, start=1):
        found |= dict.fromkeys(block.parameters(), number)
    return found
