"""The norm of the whole gradient, whose tensors the ranks have cut or sharded in different ways."""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from regard.parallel.pieces import Cut
from regard.parallel.tensors import whole
from regard.parallel.world import World


def gradient_norm(gradients: Mapping[str, Tensor], cuts: Mapping[str, Cut], world: World) -> Tensor:
    """The norm of all gradients, by parameter name, on every rank: a 0-d tensor in float64.

    Gradients of cut parameters count once for each rank that holds other slices, those of whole ones once.
    """
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
