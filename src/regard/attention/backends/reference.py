"""The reference backend: the definition of attention. Every other backend is tested against it.

It holds every score and every weight; the steps are those of ``weigh.py``.
"""

from __future__ import annotations

import torch

from regard.attention.call import Call, Out, Plan, dense_pairs
from regard.attention.weigh import mix


class Reference:
    """Dense and exact; it refuses nothing."""

    name = "reference"

    def refuses(self, call: Call) -> list[str]:
        return []

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        return mix(call, dense_pairs(call.plan, call.q))
