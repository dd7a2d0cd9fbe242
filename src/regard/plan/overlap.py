"""Which communication hides behind computing, by the FLOP/s of a device and the bandwidth of its links."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from regard.plan.communication import communication
from regard.plan.hardware import UTILIZATION, Hardware
from regard.plan.layout import RankModel
from regard.plan.trace import StepTrace


class Traffic(NamedTuple):
    """One kind of communication in a step."""

    kind: str
    bytes: float  # that each rank sends, and receives
    seconds: float | None = None  # that it takes by itself; None: the links are not known
    exposed: float | None = None  # the part of these seconds in which nothing is computed

    def record(self) -> dict[str, float | None]:
        """The numbers, for a program."""
        return {name: value for name, value in self._asdict().items() if name != "kind"}


def traffic(model: RankModel, found: StepTrace, hardware: Hardware | None) -> tuple[Traffic, ...]:
    """Every kind of communication in a step, with what is exposed of it on this hardware.

    FSDP gathers the next block's weights, and scatters the last block's gradients, while a block is computed (Zhao et
    al. 2023, section 3.3): hidden is what takes no longer than that, except for the first block of a pass and the last
    reduction, which nothing overlaps. Keys and values travel while scores are computed (Liu et al. 2023, section 3).
    Each product waits for the sums of tensor parallelism (Narayanan et al. 2021, section 3.2), and experts for their
    tokens.
    """
    kinds = communication(model, found.stream)
    if hardware is None:
        return tuple(Traffic(kind, size) for kind, size in kinds.items())
    count = max(1, model.blocks)
    forward, backward = block_seconds(model, found, hardware)
    times = model.micro_batches * (count - 1)
    room = {"weights forward": times * forward}
    left = times * backward
    alone = {"weights forward": 2, "weights backward": 1, "gradients": 2, "replicas": 2}  # units that nothing hides
    made = []
    for kind, size in kinds.items():
        seconds = size / hardware.bandwidth(*group(kind, model))
        if kind not in alone:
            free = model.micro_batches * count * score_seconds(model, found, hardware) if kind == "ring" else 0.0
            made.append(Traffic(kind, size, seconds, max(0.0, seconds - free)))
            continue
        single = seconds * min(1.0, alone[kind] / (count + 1))
        free = room.get(kind, left)
        made.append(Traffic(kind, size, seconds, single + max(0.0, seconds - single - free)))
        left -= 0.0 if kind in room else min(left, seconds - single)
    return tuple(made)


def group(kind: str, model: RankModel) -> tuple[int, int]:
    """The ranks that communicate, and the distance between neighbors among them."""
    layout, sharded = model.layout, model.units[0].ranks
    return {
        "replicas": (layout.replicate, sharded * layout.tensor),
        "tensor": (layout.tensor, 1),
        "ring": (layout.context, layout.tensor),
        "experts": (layout.expert, layout.context * layout.tensor),
    }.get(kind, (sharded, layout.tensor))


def block_seconds(model: RankModel, found: StepTrace, hardware: Hardware) -> tuple[float, float]:
    """The time of a block on a rank, forward and backward; the latter with what is computed again."""
    blocks, every = _forward(found)
    count = max(1, model.blocks) * model.layout.context * model.layout.tensor
    forward = blocks / count / (hardware.flops * UTILIZATION)
    return forward, forward * (found.micro_batch.flops / every - 1)


def score_seconds(model: RankModel, found: StepTrace, hardware: Hardware) -> float:
    """The time of a block's scores and values on a rank, forward and twice that backward: what is no matrix of it."""
    blocks, _ = _forward(found)
    rows, length, _ = found.stream
    matrices = sum(prod(one.shape) for unit in model.units if unit.block for one in unit.weights if len(one.shape) > 1)
    scores = blocks / model.layout.tensor - 2 * rows * length * matrices
    return 3 * max(0.0, scores) / max(1, model.blocks) / model.layout.context / (hardware.flops * UTILIZATION)


def _forward(found: StepTrace) -> tuple[float, float]:
    """FLOPs of a forward pass of all blocks, and of all parts."""
    blocks = sum(part.flops for name, part in found.parts.items() if ".*" in name)
    every = sum(part.flops for part in found.parts.values())
    return (blocks, every) if every else (found.micro_batch.flops / 3, found.micro_batch.flops / 3)
