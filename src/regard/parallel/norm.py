"""The norm of the whole gradient, whose tensors the ranks have cut or sharded in different ways."""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from regard.parallel.pieces import Cut
from regard.parallel.tensors import whole
from regard.parallel.world import World


def gradient_norm(gradients: Mapping[str, Tensor], cuts: Mapping[str, Cut], world: World) -> Tensor:
    """The norm of all gradients, which are given by parameter: a 0-d tensor, the same on every rank.

    The squares of cut ones are summed over the ranks that hold the other slices; whole ones count once.
    """
    if not cuts:
        return whole(torch.nn.utils.get_total_norm(list(gradients.values())))
    over: dict[str, list[Tensor]] = {}
    for name, gradient in gradients.items():
        over.setdefault(cuts[name].over if name in cuts else "", []).append(gradient)
    squares = []
    for dimension, members in sorted(over.items()):
        square = whole(torch.nn.utils.get_total_norm(members)).double().square()
        if group := world.group(dimension) if dimension else None:
            distributed.all_reduce(square, group=group)
        squares.append(square)
    return torch.stack(squares).sum().sqrt()
