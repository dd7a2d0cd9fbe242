"""The roles of a head, each scored from 0 to 1 by the share of its weight that fits the role.

* ``previous``    weight on the previous token;
* ``self``        weight on the token itself;
* ``sink``        weight on the first visible token, the attention sink (Xiao et al. 2024);
* ``induction``   on a repeated random text, weight on the token that followed the same token before (Olsson et al.
                  2022, the prefix-matching score);
* ``positional``  overlap Σ min(w, w') of the rows at the same position of two random texts: 1 if the weights depend on
                  the position alone.

The first three are means over the rows of the given text that see at least two keys. The others come from random texts,
because real texts repeat themselves in many ways, and exist for language models only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.look.capture.strips import strip_ranges, strips
from regard.look.capture.trace import Attention, observe
from regard.look.statistics.measures import MOST, Head
from regard.models.base import LanguageModel

LONGEST = 64  # tokens of the random text, which is repeated once
SHORTEST = 4
#: A head whose rows overlap by this much is positional; any two rows over few keys overlap by half.
BY_PLACE = 0.8


def random_text(vocabulary: int, context: int, seed: int = 0) -> Tensor | None:
    """Two random texts, each repeated once, [2, 2L]; all tokens of a text differ if the vocabulary is large enough."""
    length = min(LONGEST, context // 2)
    if length < SHORTEST:
        return None
    generator = torch.Generator().manual_seed(seed)
    if vocabulary >= length:
        rows = [torch.randperm(vocabulary, generator=generator)[:length] for _ in range(2)]
    else:
        rows = [torch.randint(vocabulary, (length,), generator=generator) for _ in range(2)]
    return torch.stack(rows).repeat(1, 2)


def on_random_text(model: LanguageModel, text: Tensor) -> list[dict[str, list[float]]]:
    """The scores ``induction`` and ``positional`` of the heads of each attention; {} for unobservable mechanisms."""
    observations = observe(model, lambda: model.features(text))
    return [random_scores(one) if isinstance(one, Attention) else {} for one in observations]


def random_scores(attention: Attention) -> dict[str, list[float]]:
    """The scores from an attention over two random texts of L tokens, each repeated once."""
    length = attention.q.shape[2] // 2
    again = torch.arange(
        length, 2 * length - 1
    )  # the queries of the repetition; the token after the last one is unknown
    ranges, scores = strip_ranges(attention, 2 * length), {"induction": [], "positional": []}
    for head in range(attention.q.shape[1]):
        weights = torch.zeros(2, 2 * length, 2 * length)
        for strip in strips(attention, head, ranges):
            weights[:, strip.rows, strip.columns] = strip.weights.float().cpu()
        scores["induction"].append(float(weights[:, again, again - length + 1].mean()))
        alike = torch.minimum(weights[0, 1:length], weights[1, 1:length]).sum(-1)  # before the repetition
        scores["positional"].append(float(alike.mean()))
    return scores


def role(scores: dict[str, float | None]) -> str:
    """The role of a head, "mixed" if it has none. A specific role takes precedence over ``positional``."""
    places = {name: score for name, score in scores.items() if name != "positional" and score is not None}
    best = max(places, key=lambda name: places[name])
    if places[best] >= MOST:
        return best
    return "positional" if (scores.get("positional") or 0.0) >= BY_PLACE else "mixed"


def scored(head: Head, random: dict[str, list[float]]) -> dict[str, float | None]:
    """All scores of a head, from the given text and from random ones."""
    number = head.head - 1
    return {
        "previous": head.previous,
        "induction": random["induction"][number] if random else None,
        "sink": head.first,
        "positional": random["positional"][number] if random else None,
        "self": head.own,
    }
