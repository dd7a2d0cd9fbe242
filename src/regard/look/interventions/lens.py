"""The logit lens: what each layer would say if it were the last one (nostalgebraist 2020).

The residual stream after each block goes through the model's own last norm and head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.residual import along, merged
from regard.look.capture.trace import evaluation_mode
from regard.look.views.reading import UNKNOWN, Reading, spelled

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials

LONGEST = 1024  # tokens; each is put through the head once for every layer


def lens(model: Any, tokenizer: Tokenizer, specials: Specials | None, reading: Reading) -> dict[str, Any]:
    """For each layer and token the likeliest next token, and how many are likelier than the one that came."""
    count = reading.inputs.shape[1]
    if count > LONGEST:
        raise UserError(f"the lens reads at most {LONGEST:,} tokens, and the text has {count:,}; shorten it")
    streams: list[Tensor] = []

    def note(layer: int, x: Tensor) -> Tensor:
        streams.append(merged(model, x))
        return x

    with evaluation_mode(model), along(model, note):
        reading.features(model)
    top, ranks = [], []
    for x in streams:
        said, rank = _said(model, tokenizer, specials, reading, x)
        top.append(said)
        ranks.append(rank)
    return {
        "tokens": spelled(tokenizer, specials, reading.inputs[0].tolist()),
        "layers": ["embedding", *(str(layer) for layer in range(1, len(streams)))],
        "top": top,
        "rank_of_actual": ranks,
    }


@torch.no_grad()
def _said(
    model: Any, tokenizer: Tokenizer, specials: Specials | None, reading: Reading, x: Tensor
) -> tuple[list[dict[str, Any]], list[int | None]]:
    """What the head makes of a stream [1, N, C]: for each place its guess, and the rank of what came."""
    guesses: list[dict[str, Any]] = []
    ranks: list[int | None] = []
    with evaluation_mode(model):
        for _, logits, targets in reading.logits(model, model.norm(x)):
            best = logits.softmax(-1).max(-1)
            texts = spelled(tokenizer, specials, best.indices.tolist())
            pairs = zip(texts, best.values.tolist(), strict=True)
            guesses += [{"text": text, "probability": probability} for text, probability in pairs]
            actual = logits.gather(1, targets.clamp(min=0)[:, None])
            rank = (logits > actual).sum(-1).tolist()
            ranks += [None if target == UNKNOWN else r for target, r in zip(targets.tolist(), rank, strict=True)]
    return guesses, ranks
