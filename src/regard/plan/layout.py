"""What a rank of a layout holds: its share of every weight, and its memory at the peak of a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import Mask
from regard.models import Model
from regard.models.shapes import SkipInit, build_on_meta
from regard.nn.attention import SelfAttention
from regard.nn.experts.moe import MixtureOfExperts
from regard.parallel.apply import cut
from regard.parallel.expert import expert_parameters
from regard.parallel.fsdp import GRADIENT_SHARE
from regard.parallel.layout import Layout
from regard.parallel.tensor_layers import ColumnParallelLinear, RowParallelLinear
from regard.parallel.world import World
from regard.plan.trace import StepTrace
from regard.train import Experiment, MuonConfig

HALF = ("bfloat16", "float16")


class RankWeight(NamedTuple):
    """A parameter as one rank has it before FSDP shards it."""

    shape: tuple[int, ...]
    size: int = 4  # bytes of an element
    trains: bool = True
    muon: bool = False  # the optimizer needs its whole gradient


class Unit(NamedTuple):
    """Parameters that FSDP gathers, and whose gradients it reduces, at once."""

    weights: tuple[RankWeight, ...]
    ranks: int  # that share them
    replicas: int = 1  # of each shard
    block: bool = True  # or a part of one; False: what belongs to no block

    def bytes(self, of: Callable[[RankWeight], bool] = lambda weight: True) -> int:
        """Of some weights on all ranks that share them, of which each gets as many rows: the rest is padding."""
        sizes = (((one.shape or (1,)), one.size) for one in self.weights if of(one))
        return sum(-(-shape[0] // self.ranks) * self.ranks * prod(shape[1:]) * size for shape, size in sizes)

    @property
    def trained(self) -> int:
        """Bytes of its gradients."""
        return self.bytes(lambda weight: weight.trains)


class Messages(NamedTuple):
    """What layers send besides weights and gradients, in numbers for each token of a rank."""

    forward: int = 0  # sums of tensor parallelism
    backward: int = 0
    again: int = 0  # in a recomputation, which ends before the last sum of a block: nothing needs it
    experts: int = 0  # copies of tokens that go to experts
    keys: tuple[tuple[Mask, int], ...] = ()  # numbers of keys and values by mask


@dataclass(frozen=True)
class RankModel:
    """The weights of one rank of a layout."""

    experiment: Experiment
    layout: Layout
    units: tuple[Unit, ...]  # the first is the root
    blocks: int
    messages: Messages
    buffers: int = 0  # bytes that every rank holds
    reductions: int = 1  # of gradients in a step

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a rank in a step: each lane has its own."""
        world = World(size=prod(self.layout.sizes), layout=self.layout)
        return self.experiment.train.accumulate * len(world.lanes(self.experiment.train.lanes))

    @property
    def element(self) -> int:
        """Bytes of a number in matrix products."""
        return 2 if self.experiment.train.precision in HALF else 4

    def traveling(self, unit: Unit) -> int:
        """Bytes of the whole weights of a unit in the format in which they travel: in blocks that of products."""
        return unit.bytes() // (2 if unit.block and self.experiment.train.precision == "bfloat16" else 1)

    @property
    def held(self) -> float:
        """Bytes of the shards of this rank."""
        return sum(unit.bytes() / unit.ranks for unit in self.units)

    @property
    def gradients(self) -> int:
        """Bytes of all gradients before they are sharded."""
        return sum(unit.trained for unit in self.units)


def rank_model(experiment: Experiment, layout: Layout, limit: float | None = None) -> RankModel:
    """The model of the first rank, of which only shapes are made; a layout that it cannot have is refused.

    ``limit``: bytes of a device.
    """
    model = build_on_meta(experiment.model)
    with torch.device("meta"), SkipInit():
        experiment.train.adapt.apply(model)
        cut(model, World(size=prod(layout.sizes), layout=layout))
    units = tuple(_units(model, experiment, layout))
    buffers = sum(x.numel() * x.element_size() for x in model.buffers())
    made = RankModel(experiment, layout, units, len(model.blocks), _messages(model, layout), buffers)
    free = math.inf if limit is None else limit - made.held
    once = made.gradients <= GRADIENT_SHARE * free
    return made if once else replace(made, reductions=made.micro_batches)


def _units(model: Model, experiment: Experiment, layout: Layout) -> Iterator[Unit]:
    """The units of ``parallel.fsdp.shard``."""
    ranks = (layout.shard or 1) * layout.context
    experts = list(expert_parameters(model).values())
    blocks = [list(block.parameters()) for block in model.blocks]
    uses = Counter(one for block in blocks for one in block)
    apart = {one for own in experts for one in own} | {one for one, count in uses.items() if count > 1}
    blocks = [[one for one in block if one not in apart] for block in blocks]
    inside = {one for part in (*blocks, *experts) for one in part}
    muon = set(model.hidden_matrices() if isinstance(experiment.train.optimizer, MuonConfig) else ())

    def weights(part: Iterable[Tensor]) -> tuple[RankWeight, ...]:
        trained = ((one, one.requires_grad) for one in part)
        return tuple(
            RankWeight(tuple(x.shape), x.element_size(), trains, trains and x in muon) for x, trains in trained
        )

    yield Unit(weights(one for one in model.parameters() if one not in inside), ranks, layout.replicate, block=False)
    yield from (Unit(weights(block), ranks, layout.replicate) for block in blocks)
    yield from (Unit(weights(own), ranks * layout.replicate // layout.expert) for own in experts)


def _messages(model: Model, layout: Layout) -> Messages:
    modules = list(model.modules())
    mixtures = [module for module in modules if isinstance(module, MixtureOfExperts)] if layout.expert > 1 else []
    keys: Counter[Mask] = Counter()
    if layout.context > 1:
        attentions = [module for module in modules if isinstance(module, SelfAttention)]
        for mask, layer in zip(model.layer_masks, attentions, strict=True):
            keys[mask] += 2 * layer.kv_heads * layer.head_width
    sums = [
        [one.out_features for one in block.modules() if isinstance(one, RowParallelLinear)] for block in model.blocks
    ]
    return Messages(
        forward=sum(map(sum, sums)),
        backward=sum(layer.in_features for layer in modules if isinstance(layer, ColumnParallelLinear)),
        again=sum(sum(block[:-1]) for block in sums),
        experts=sum(mixture.config.active * mixture.width for mixture in mixtures),
        keys=tuple(keys.items()),
    )


@dataclass(frozen=True)
class Memory:
    """Bytes on each device at the peak of a step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    copies: float = 0.0  # weights in the format of products, or whole weights of a block of sharded ones
    workspace: float = 0.0  # of matrix products
    fragments: float = 0.0  # freed blocks that later tensors do not fit into, on a CPU

    @property
    def total(self) -> float:
        return sum(vars(self).values())


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
    gradients = sum(unit.trained / unit.ranks for unit in model.units)
    share = gradients / max(1, found.gradients)
    root, *others = model.units
    largest = max((model.traveling(unit) for unit in others), default=0)
    # Gradients are summed in float32: whole ones of all micro-batches, or those of the root and of one block.
    once = model.reductions == 1 and model.micro_batches > 1
    unsharded = model.gradients if once else root.trained + max((unit.trained for unit in others), default=0)
    copies = model.traveling(root) + 2.0 * largest + unsharded
    # Muon gathers its matrices whole; other updates work on shards.
    muon = any(weight.muon for unit in model.units for weight in unit.weights)
    return Memory(
        weights=model.held + model.buffers,
        gradients=gradients,
        optimizer=found.optimizer * share,
        activations=max(found.activations / model.layout.context, found.extra * (1.0 if muon else share) - copies),
        copies=copies,
        workspace=found.workspace,
    )
