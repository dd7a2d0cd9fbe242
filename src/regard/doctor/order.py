"""Whether the order of earlier tokens reaches the first attention of a model that is told positions.

Deeper ones know it from how much each token could see. All earlier tokens are turned round, and the last of them takes
the place of one further back: positions that come round again, or end too early, show only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.attend import Mechanism
from regard.doctor import limits
from regard.doctor.asked import Asked, Outputs, apart_of
from regard.doctor.finding import Finding

BACK = (1, 8, 16)  # how far back the token is that is exchanged with the last but one


def judge(asked: Asked, batch: Any, side: str, vocabulary: int) -> Iterator[Finding]:
    """``side``: of which tokens of the batch the order is changed; each row is full of them."""
    tokens: Tensor = getattr(batch, side)
    length = tokens.shape[1]
    if length < 4:
        return
    plain = asked.outputs(batch)
    every = torch.arange(length, device=tokens.device)
    changes = {"in reverse order": torch.cat((every[:-1].flip(0), every[-1:]))}
    for back in BACK:
        if back < length - 2:
            swapped = every.clone()
            swapped[[length - 2, length - 2 - back]] = swapped[[length - 2 - back, length - 2]]
            changes[f"{back + 1} and 1 before it exchanged"] = swapped
    for name, places in changes.items():
        turned, moved = tokens[:, places], places != every
        if torch.equal(turned, tokens):
            continue
        others = torch.where(moved, (tokens + 1) % vocabulary, tokens)
        after, third = (asked.outputs(batch._replace(**{side: these})) for these in (turned, others))
        if evidence := _alike(asked, plain, after, third, name):
            cause = "positions are made but never reach the scores, or are the same at several places"
            change = "--model.position rotary, and see that what it gives grows with the place"
            where = "position_source" if side == "source" and hasattr(asked.model, "position_source") else "position"
            yield Finding("position_fault", where, evidence, cause, change)
            return


def _alike(asked: Asked, plain: Outputs, turned: Outputs, others: Outputs, name: str) -> str:
    """One that does not listen to those tokens at all cannot tell their order either, and that is another fault."""
    mechanisms = {name for name, module in asked.model.named_modules() if isinstance(module, Mechanism)}
    for (part, before), (_, after), (_, third) in zip(plain, turned, others, strict=False):
        listens = apart_of(before[:, -1:], third[:, -1:])
        if part in mechanisms and listens:
            apart = apart_of(before[:, -1:], after[:, -1:])
            alike = apart < limits.MOVED and listens > 100 * limits.MOVED
            return f"with earlier tokens {name}, {part} gives the last one the same, to {apart:.1g}" if alike else ""
    return ""
