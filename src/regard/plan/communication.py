"""What the ranks of a layout send each other in a step, in bytes.

A collective operation moves as little as any algorithm can (Thakur, Rabenseifner and Gropp 2005, section 4): of n
bytes each of p ranks sends, and receives, n (p-1)/p in an all-gather, a reduce-scatter or an all-to-all, and twice
that in an all-reduce.
"""

from __future__ import annotations

from regard.plan.layout import RankModel


def moved(total: float, ranks: int) -> float:
    """Bytes of ``total`` that each of ``ranks`` receives in an all-gather, reduce-scatter or all-to-all."""
    return total * (ranks - 1) / ranks


def communication(model: RankModel) -> dict[str, float]:
    """Bytes that each rank sends, and receives, in a step, by kind; kinds without any are left out.

    FSDP gathers weights twice and scatters sums of gradients once (Rajbhandari et al. 2020, section 7.2.2: 3Ψ); the
    root's weights stay from the forward to the backward pass.
    """
    ranks, times, weights = model.sharding, model.micro_batches, model.gathered()
    matrices = sum(weight.padded(ranks) for weight in model.weights if weight.muon)
    kinds = {
        "weights forward": times * moved(sum(weights), ranks),
        "weights backward": times * moved(sum(weights[_first_trained(model) :]), ranks),
        "gradients": model.reductions * moved(model.gradients(), ranks),
        "replicas": model.reductions * 2 * moved(model.gradients() / ranks, model.layout.replicate),
        "Muon's matrices": moved(matrices, ranks),
    }
    return {kind: size for kind, size in kinds.items() if size}


def _first_trained(model: RankModel) -> int:
    """The first unit after the root that the backward pass reaches."""
    units = enumerate(model.units)
    return next((place for place, unit in units if place and any(one.trains for one in unit)), len(model.units))
