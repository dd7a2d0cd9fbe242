"""A mask: keys at a distance of 0, 1, 2, 4, 8 ... tokens (LogSparse, Li et al. 2019, fig. 3).

regard mask "causal & logsparse" --with mask.py
regard train --with mask.py --model.attention masked --model.attention.mask "logsparse | window(4)"
"""

from dataclasses import dataclass

from torch import Tensor

from regard.attention import Mask, Pairs


@dataclass(frozen=True)
class LogSparse(Mask):
    """Keys whose distance to the query is zero or a power of two."""

    def allows(self, pairs: Pairs) -> Tensor:
        distance = pairs.q.order - pairs.k.order
        return (distance >= 0) & ((distance & (distance - 1)) == 0)
