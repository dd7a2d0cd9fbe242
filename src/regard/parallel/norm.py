"""The norm of the whole gradient, whose tensors the ranks have cut or sharded in different ways."""

from collections import defaultdict
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from regard.parallel.pieces import Cut, pieces
from regard.parallel.tensors import is_sharded, local
from regard.parallel.world import World


def own_norm(gradients: Mapping[str, Tensor], cuts: Mapping[str, Cut], world: World) -> Tensor:
    """This rank's share of the norm of all gradients, which are given by parameter: a 0-d tensor.

    The squares of the shares of all ranks add up to the square of the norm. Nothing is communicated.
    """
    if world.size == 1:
        return torch.nn.utils.get_total_norm(list(gradients.values()))
    members = defaultdict[int, list[Tensor]](list)  # by the number of ranks that hold them
    for name, gradient in gradients.items():
        cut, whole, own = cuts.get(name), world.size // _shards(gradient), local(gradient)
        if cut is None:
            members[whole].append(own)
            continue
        repeated = [start for start, _ in cut.ranges[len(cut.ranges) - cut.repeated :]]
        for piece in pieces(gradient, cut):
            everywhere = any(piece.whole[cut.dim] >= start for start in repeated)
            slices = 1 if everywhere else getattr(world.layout, cut.over)
            members[whole // slices].append(own[piece.in_local()])
    norms = [torch.nn.utils.get_total_norm(some) / holders**0.5 for holders, some in members.items()]
    return torch.linalg.vector_norm(torch.stack(norms))


def _shards(gradient: Tensor) -> int:
    """The number of different shards that FSDP has made of a tensor."""
    if not is_sharded(gradient):
        return 1
    sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
    return prod(size for placement, size in sizes if placement.is_shard())
