"""The norm of the whole gradient, whose tensors the ranks have cut or sharded in different ways."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, distributed

from regard.parallel.pieces import Cut, pieces
from regard.parallel.tensors import local, whole
from regard.parallel.world import World


def gradient_norm(gradients: Mapping[str, Tensor], cuts: Mapping[str, Cut], world: World) -> Tensor:
    """The norm of all gradients, which are given by parameter: a 0-d tensor, the same on every rank.

    The squares of cut ones are summed over the ranks that hold the other slices; whole ones, and slices that all of
    these ranks hold, count once.
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
    if world.experts is not None and any(cut.repeated for cut in cuts.values()):
        squares.append(_repeated(gradients, cuts, world) * (1 / world.layout.expert - 1))
    return torch.stack(squares).sum().sqrt()


def _repeated(gradients: Mapping[str, Tensor], cuts: Mapping[str, Cut], world: World) -> Tensor:
    """The squares of the slices that all ranks of an expert group hold, such as shared experts, once for each rank."""
    assert world.experts is not None
    slices = [x for name, cut in cuts.items() if name in gradients for x in _slices(gradients[name], cut)]
    square = torch.nn.utils.get_total_norm(slices).double().square().to(world.device)
    for dimension in ("expert", "weights"):  # FSDP has sharded them over the second
        distributed.all_reduce(square, group=world.experts.get_group(dimension))
    return square


def _slices(gradient: Tensor, cut: Cut) -> Iterator[Tensor]:
    """The repeated slices of this process's shard of a gradient."""
    starts = [start for start, _ in cut.ranges[len(cut.ranges) - cut.repeated :]]
    for piece in pieces(gradient, cut) if starts else ():
        if piece.whole[cut.dim] >= min(starts):
            yield local(gradient)[piece.in_local()]
