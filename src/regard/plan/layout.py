"""What a rank of a layout holds: its share of every weight, and its memory at the peak of a step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from regard.models.shapes import SkipInit, build_on_meta
from regard.parallel.apply import cut
from regard.parallel.fsdp import GRADIENT_SHARE
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.plan.trace import StepTrace
from regard.train import Experiment, MuonConfig

HALF = ("bfloat16", "float16")


class Weight(NamedTuple):
    """A parameter as one rank has it before FSDP shards it."""

    shape: tuple[int, ...]
    size: int  # bytes of an element
    trains: bool
    muon: bool  # the optimizer needs its whole gradient

    def padded(self, ranks: int) -> int:
        """Bytes of the whole parameter when it is shared by so many ranks, of which FSDP gives each as many rows."""
        return -(-self.shape[0] // ranks) * ranks * prod(self.shape[1:]) * self.size


@dataclass(frozen=True)
class RankModel:
    """The weights of one rank of a layout."""

    experiment: Experiment
    layout: Layout
    units: tuple[tuple[Weight, ...], ...]  # of FSDP: what belongs to no block, and each block
    reductions: int  # of gradients in a step

    @property
    def sharding(self) -> int:
        """Ranks that share weights by FSDP: those of the dimensions shard and context."""
        return (self.layout.shard or 1) * self.layout.context

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a rank in a step: each lane has its own."""
        return micro_batches(self.experiment, self.layout)

    @property
    def element(self) -> int:
        """Bytes of a number in matrix products."""
        return 2 if self.experiment.train.precision in HALF else 4

    @property
    def whole_gradients(self) -> int:
        """Bytes of gradients that are not sharded, from the first micro-batch to the last."""
        return 0 if self.reductions > 1 or self.micro_batches == 1 else self.gradients()

    @property
    def weights(self) -> list[Weight]:
        """Of all units."""
        return [weight for unit in self.units for weight in unit]

    def gathered(self) -> list[int]:
        """Bytes of the whole weights of each unit, in the format in which they travel: that of products in blocks."""
        root, *blocks = (sum(weight.padded(self.sharding) for weight in unit) for unit in self.units)
        return [root, *(block // 2 if self.experiment.train.precision == "bfloat16" else block for block in blocks)]

    def gradients(self) -> int:
        """Bytes of the gradients of all units, in the format in which they are summed."""
        return sum(weight.padded(self.sharding) for weight in self.weights if weight.trains)


def micro_batches(experiment: Experiment, layout: Layout) -> int:
    """Forward and backward passes of a rank in a step; lanes that the ranks cannot share equally are refused."""
    lanes = World(size=prod(layout.sizes), layout=layout).lanes(experiment.train.lanes)
    return experiment.train.accumulate * len(lanes)


def rank_model(experiment: Experiment, layout: Layout, limit: float | None = None) -> RankModel:
    """The model of the first rank, of which only shapes are made; a layout that it cannot have is refused.

    ``limit``: bytes of a device.
    """
    model = build_on_meta(experiment.model)
    with torch.device("meta"), SkipInit():
        experiment.train.adapt.apply(model)
        cut(model, World(size=prod(layout.sizes), layout=layout))
    blocks = [list(block.parameters()) for block in model.blocks]
    uses = Counter(one for block in blocks for one in block)
    own = [[one for one in block if uses[one] == 1] for block in blocks]  # others belong to the root
    inside = {one for block in own for one in block}
    root = [one for one in model.parameters() if one not in inside]
    muon = set(model.hidden_matrices() if isinstance(experiment.train.optimizer, MuonConfig) else ())

    def weight(one: Tensor) -> Weight:
        return Weight(tuple(one.shape), one.element_size(), one.requires_grad, one.requires_grad and one in muon)

    units = tuple(tuple(map(weight, unit)) for unit in (root, *own))
    made = RankModel(experiment, layout, units, 1)
    free = (
        math.inf
        if limit is None
        else limit - sum(weight.padded(made.sharding) for weight in made.weights) / made.sharding
    )
    return made if made.gradients() <= GRADIENT_SHARE * free else replace(made, reductions=made.micro_batches)


@dataclass(frozen=True)
class Memory:
    """Bytes on each device at the peak of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    copies: float = 0.0  # weights in the format of products, or whole weights of a block of sharded ones
    workspace: float = 0.0  # of matrix products

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.copies + self.workspace


def memory(model: RankModel, found: StepTrace) -> Memory:
    """The memory of a rank at the peak of a step; ``found``: the trace of such a rank, with all tokens of its rows.

    FSDP divides weights, gradients and optimizer state (Rajbhandari et al. 2020, section 5: P_os+g+p); the whole
    weights of the root and of two blocks are there at a time, and the gradients of the root and of one block.
    """
    if prod(model.layout.sizes) == 1:  # gradients take the place of activations, unless there are some before
        several = model.micro_batches > 1
        activations = found.activations if several else found.growing - found.gradients
        activations = max(activations, found.extra - found.copies)  # an update comes when these are gone
        stored = (found.weights, found.gradients, found.optimizer, activations)
        return Memory(*stored, float(found.copies), found.workspace)
    whole = sum(weight.padded(1) for weight in model.weights)
    held = sum(weight.padded(model.sharding) for weight in model.weights) / model.sharding
    share = model.gradients() / model.sharding / max(1, sum(one.padded(1) for one in model.weights if one.trains))
    root, *blocks = model.gathered()
    largest = max(blocks, default=0)
    # Gradients are summed in float32: whole ones of all micro-batches, or those of the root and of one block.
    unsharded = model.whole_gradients or root + largest * 4 / model.element
    # Muon gathers its matrices whole; other updates work on shards.
    update = found.extra * (1.0 if any(weight.muon for weight in model.weights) else share)
    copies = root + 2 * largest + unsharded
    return Memory(
        weights=held + found.weights - whole,  # the rest are buffers
        gradients=found.gradients * share,
        optimizer=found.optimizer * share,
        activations=max(found.activations / model.layout.context, update - copies),
        copies=copies,
        workspace=found.workspace,
    )
