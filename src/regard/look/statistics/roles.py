"""Which role a head plays, each scored from 0 to 1: what share of its weight goes where the role would put it.

* ``previous``    to the token just before;
* ``self``        to the token itself;
* ``sink``        to the first token that is seen, where heads leave what they do not need (Xiao et al. 2024);
* ``induction``   on a random text that is repeated, to the token that followed the same token before (Olsson et al.
                  2022, the prefix-matching score);
* ``positional``  how alike two rows at the same place of two random texts are, Σ min(w, w'): 1 where the place alone
                  decides and no word matters.

The first three are means over the rows of the text at hand that see at least two keys; the others come from random
texts, since a real one repeats itself in many ways at once. They are told of models of one text only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.look.capture.strips import bands, strips
from regard.look.capture.trace import Attention, everything
from regard.look.statistics.measures import MOST, Head

LONGEST = 64  # tokens of the random text, which is read twice
SHORTEST = 4
#: A head whose rows overlap by so much looks by place; any two rows over few keys overlap by half.
BY_PLACE = 0.8


def random_text(vocabulary: int, context: int, seed: int = 0) -> Tensor | None:
    """Two random texts, each repeated once, [2, 2L], in which no token comes twice if there are enough."""
    length = min(LONGEST, context // 2)
    if length < SHORTEST:
        return None
    noise = torch.Generator().manual_seed(seed)
    if vocabulary >= length:
        rows = [torch.randperm(vocabulary, generator=noise)[:length] for _ in range(2)]
    else:
        rows = [torch.randint(vocabulary, (length,), generator=noise) for _ in range(2)]
    return torch.stack(rows).repeat(1, 2)


def on_random_text(model: Any, text: Tensor) -> list[dict[str, list[float]]]:
    """For each attention the scores ``induction`` and ``positional`` of its heads; none for mechanisms without maps."""
    found = everything(model, lambda: model.features(text))
    return [random_scores(one) if isinstance(one, Attention) else {} for one in found]


def random_scores(attention: Attention) -> dict[str, list[float]]:
    """``attention`` is that of two random texts of L tokens, each read twice in a row."""
    length = attention.q.shape[2] // 2
    again = torch.arange(length, 2 * length - 1)  # the queries of the second reading; what follows the last is unknown
    among, scores = bands(attention, 2 * length), {"induction": [], "positional": []}
    for head in range(attention.q.shape[1]):
        weights = torch.zeros(2, 2 * length, 2 * length)
        for strip in strips(attention, head, among):
            weights[:, strip.rows, strip.columns] = strip.weights.float().cpu()
        scores["induction"].append(float(weights[:, again, again - length + 1].mean()))
        alike = torch.minimum(weights[0, 1:length], weights[1, 1:length]).sum(-1)  # before anything is repeated
        scores["positional"].append(float(alike.mean()))
    return scores


def role(scores: dict[str, float | None]) -> str:
    """The role that a head plays, "mixed" if none. A place of its own says more than ``positional``."""
    places = {name: score for name, score in scores.items() if name != "positional" and score is not None}
    best = max(places, key=lambda name: places[name])
    if places[best] >= MOST:
        return best
    return "positional" if (scores.get("positional") or 0.0) >= BY_PLACE else "mixed"


def scored(head: Head, random: dict[str, list[float]]) -> dict[str, float | None]:
    """All scores of a head, from the text at hand and from random ones."""
    number = head.head - 1
    return {
        "previous": head.previous,
        "induction": random["induction"][number] if random else None,
        "sink": head.first,
        "positional": random["positional"][number] if random else None,
        "self": head.own,
    }
