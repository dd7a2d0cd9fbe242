"""The reference backend, which is the definition of attention, and the same in blocks of queries.

``Reference`` holds every score and every weight; the steps are those of ``call.py``. Every other backend is tested
against it.

``Blocked`` is for long rows that no fused kernel supports: top-k, a soft cap or a learned score need whole rows of
scores, but not all rows at once. Each block computes its rows and stores only the mixed values; the backward pass
computes them again (Chen et al. 2016), so that memory is O(N · block) in both directions. Keys beyond a mask's reach
are never read.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.call import Backend, Call, Out, dense_pairs, mix
from regard.attention.masks.mask import Reach, StridePattern
from regard.attention.slots import Pairs
from regard.attention.tiling.regroup import MaskPart
from regard.attention.tiling.tile import Tile, by_reach, consecutive

SCORES = 2**22  # scores of one head in one block
FEWEST, MOST = 16, 512  # rows of a block


class Reference(Backend):
    """Dense and exact; it refuses nothing."""

    name = "reference"

    def run(self, call: Call) -> Out:
        return mix(call, dense_pairs(call.plan, call.q))


class Blocked(Backend):
    """Everything the reference does except returning the weights, which would be all the memory it saves."""

    name = "blocked"

    def refuses(self, call: Call) -> list[str]:
        return ["it stores no weights"] if call.weights else []

    def run(self, call: Call) -> Out:
        return Out(mix_in_blocks(call))


Visible = Callable[[Tile, Pairs], Tensor]  # the allowed pairs of a block, [B, H, q, k]


def mix_in_blocks(call: Call, visible: Visible | None = None) -> Tensor:
    """The weighted values [B, H, Q, E]; of each block only these are stored for the backward pass.

    ``visible`` gives the pairs to consider (default: those that the plan's mask allows).
    """

    def work(tile: Tile) -> Tensor:
        pairs = tile.pairs(call.plan, heads=call.q.shape[1], batch=call.q.shape[0], device=call.q.device)
        part = call._replace(q=call.q[:, :, tile.rows], k=tile.keys(call.k), v=tile.keys(call.v))
        return mix(part, pairs, None if visible is None else visible(tile, pairs)).values

    plan = call.plan
    size = min(MOST, max(FEWEST, SCORES // max(1, plan.keys.length)))  # the fewer rows, the more keys there are
    reach = plan.mask.reach() if consecutive(plan) else Reach(None, None)
    blocks = by_reach(MaskPart(plan.mask, StridePattern(1)), plan, size, reach)
    if len(blocks) == 1:
        return work(blocks[0])
    again = torch.is_grad_enabled()
    return torch.cat([checkpoint(work, b, use_reentrant=False) if again else work(b) for b in blocks], dim=2)
