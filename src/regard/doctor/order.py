"""Whether the order of earlier tokens reaches the first attention of a model that is told positions.

Deeper ones know it from how much each token could see. All earlier tokens are turned round, and the last of them takes
the place of one further back: positions that come round again, or end too early, show only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.attention import Mechanism
from regard.doctor import limits
from regard.doctor.finding import Finding
from regard.doctor.probe import Outputs, Probe, apart_of

BACK = (1, 8, 16)  # how far back the token is that is exchanged with the last but one


def judge(asked: Probe, batch: Any, side: str, vocabulary: int, name: str) -> Iterator[Finding]:
    """``side``: of which tokens of the batch the order is changed; ``name``: the first attention that hears them."""
    tokens: Tensor = getattr(batch, side)
    length = tokens.shape[1]
    plain = asked.one(batch, name) if length >= 4 else None
    if plain is None:
        return
    every = torch.arange(length, device=tokens.device)
    changes = {"in reverse order": torch.cat((every[:-1].flip(0), every[-1:]))}
    for back in BACK:
        if back < length - 2:
            swapped = every.clone()
            swapped[[length - 2, length - 2 - back]] = swapped[[length - 2 - back, length - 2]]
            changes[f"{back + 1} and 1 before it exchanged"] = swapped
    for told, places in changes.items():
        turned, moved = tokens[:, places], places != every
        if torch.equal(turned, tokens):
            continue
        apart = _apart(plain, asked.one(batch._replace(**{side: turned}), name))
        if apart >= limits.MOVED:
            continue
        # One that does not listen to those tokens at all cannot tell their order either, and that is another fault.
        others = torch.where(moved, (tokens + 1) % vocabulary, tokens)
        if _apart(plain, asked.one(batch._replace(**{side: others}), name)) > 100 * limits.MOVED:
            evidence = f"with earlier tokens {told}, {name} gives the last one the same, to {apart:.1g}"
            cause = "positions are made but never reach the scores, or are the same at several places"
            change = "--model.position rotary, and see that what it gives grows with the place"
            where = "position_source" if side == "source" and hasattr(asked.model, "position_source") else "position"
            yield Finding("position_fault", where, evidence, cause, change)
            return


def heard(model: Any, plain: Outputs, changed: Outputs) -> str:
    """The first attention that gives something else for a change of tokens; "" if none does."""
    mechanisms = {name for name, module in model.named_modules() if isinstance(module, Mechanism)}
    pairs = zip(plain, changed, strict=False)
    return next((name for (name, one), (_, two) in pairs if name in mechanisms and not one.equal(two)), "")


def _apart(one: Tensor, other: Tensor | None) -> float:
    """At the last place."""
    return 0.0 if other is None else apart_of(one[:, -1:], other[:, -1:])
