"""What the ranks of a layout send each other in a step, in bytes.

A collective operation moves as little as any algorithm can (Thakur, Rabenseifner and Gropp 2005, section 4): of n
bytes each of p ranks sends, and receives, n (p-1)/p in an all-gather, a reduce-scatter or an all-to-all, and twice
that in an all-reduce.
"""

from __future__ import annotations

from regard.attention import Mask, Range
from regard.attention.backends.ring import SMALLEST
from regard.attention.slots import select
from regard.attention.tiling.quarters import visible_keys
from regard.parallel.context import positions
from regard.plan.layout import RankModel

SLOT = 3 * 8  # bytes that ring attention needs to know of a token: order, segment and phase
FEW = 8  # ranks of a ring that are all looked at


def moved(total: float, ranks: int) -> float:
    """Bytes of ``total`` that each of ``ranks`` receives in an all-gather, reduce-scatter or all-to-all."""
    return total * (ranks - 1) / ranks


def communication(model: RankModel, stream: tuple[int, ...]) -> dict[str, float]:
    """Bytes that each rank sends, and receives, in a step, by kind; kinds without any are left out.

    ``stream``: the shape of what a block reads before a row is shared, [B, N, C].

    FSDP gathers weights twice and scatters sums of gradients once (Rajbhandari et al. 2020, section 7.2.2: 3Ψ); the
    root's weights stay from the forward to the backward pass. Tensor parallelism sums activations after attention and
    after the feed-forward network, and gradients at their inputs (Shoeybi et al. 2019, section 3). A copy of a token
    travels to each of its experts and back, forward and backward (Lepikhin et al. 2021, section 3.2), if they are
    chosen evenly.
    """
    layout, times, sent = model.layout, model.micro_batches, model.messages
    reached = [unit for place, unit in enumerate(model.units) if place >= _first_trained(model)]
    muon = [(unit.bytes(lambda weight: weight.muon), unit.ranks) for unit in model.units]
    joined = moved(layout.tensor * sum(size for size, _ in muon), layout.tensor)  # what tensor parallelism has cut
    copies = sum(2 * moved(unit.trained / unit.ranks, unit.replicas) for unit in model.units)
    tokens = stream[0] * stream[1] // layout.context if len(stream) == 3 else 0
    recomputed = model.experiment.train.checkpointing
    forward = 2 if recomputed else 1  # passes
    # Autocast rounds a block's input inside of the product, so the gradient that is summed is float32.
    sums = (sent.forward + (sent.again if recomputed else 0)) * model.element + sent.backward * 4
    kinds = {
        "weights forward": times * sum(moved(model.traveling(unit), unit.ranks) for unit in model.units),
        "weights backward": times * sum(moved(model.traveling(unit), unit.ranks) for unit in reached),
        "gradients": model.reductions * sum(moved(unit.trained, unit.ranks) for unit in model.units),
        "replicas": model.reductions * copies,
        "Muon's matrices": sum(moved(*each) for each in muon) + joined,
        "tensor": times * 2 * moved(tokens * sums, layout.tensor),
        "ring": times * ring(model, stream, forward),
        "experts": times * 2 * (1 + forward) * moved(tokens * sent.experts * model.element, layout.expert),
    }
    return {kind: size for kind, size in kinds.items() if size}


def ring(model: RankModel, stream: tuple[int, ...], forward: int = 1) -> float:
    """Bytes of keys and values that the busiest rank of a ring sends, or receives, in a micro-batch.

    Those that the mask lets its queries see, forward and backward, and their gradients back (Liu et al. 2023,
    section 3), of rows that are one text each: packed ones send less.
    """
    size, total = model.layout.context, 0.0
    if not model.messages.keys:
        return total
    rows, length, _ = stream
    smallest = SMALLEST["cpu" if model.experiment.train.device == "cpu" else "cuda"]
    for mask, numbers in model.messages.keys:
        read, given = visible(mask, length, size, smallest)
        most = max((1 + forward) * r + g for pair in zip(read, given, strict=True) for r, g in (pair, pair[::-1]))
        total += rows * most * numbers * model.element + SLOT * moved(length, size)
    return total


def visible(mask: Mask, length: int, size: int, smallest: int) -> tuple[list[int], list[int]]:
    """For some ranks of a ring: how many keys of others their queries see, and how many of theirs are seen.

    ``smallest``: tokens of the smallest tile, as in ``RingBackend``.
    """
    slots = [select(Range(length), positions(length, rank, size)) for rank in range(size)]
    ranks = range(size) if size <= FEW else (0, 1, size // 2, size - 1)

    def seen(reader: int, owner: int) -> int:
        if mask.needs_tokens:
            return length // size
        return len(visible_keys(mask, slots[reader], slots[owner], smallest))

    others = [[other for other in range(size) if other != rank] for rank in ranks]
    read = [sum(seen(rank, other) for other in rest) for rank, rest in zip(ranks, others, strict=True)]
    return read, [sum(seen(other, rank) for other in rest) for rank, rest in zip(ranks, others, strict=True)]


def _first_trained(model: RankModel) -> int:
    """The first unit after the root that the backward pass reaches."""
    units = enumerate(model.units)
    return next((place for place, unit in units if place and unit.trained), len(model.units))
