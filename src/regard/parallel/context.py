"""Context parallelism."""

import torch
from torch import Tensor


def positions(length: int, rank: int, size: int, *, zigzag: bool) -> Tensor:
    """Which tokens of a row of ``length`` a rank holds.

    Zigzag: of 2 ``size`` pieces the rank's own and its mirror image, so that under a causal mask every rank has as many
    pairs to compute (Brandon et al. 2023, striped; the two pieces as in Llama 3, 2024, sec. 3.3.2).

    >>> [positions(8, rank, 2, zigzag=True).tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    pieces = torch.arange(length).chunk(2 * size if zigzag else size)
    return torch.cat((pieces[rank], pieces[2 * size - 1 - rank])) if zigzag else pieces[rank]
