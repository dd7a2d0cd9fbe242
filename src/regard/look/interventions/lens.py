"""The logit lens: the prediction of each layer if it were the last one (nostalgebraist 2020).

The residual stream after each block passes through the model's own last norm and head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from regard.errors import UserError
from regard.look.capture.residual import along, merged
from regard.look.capture.trace import evaluation_mode
from regard.look.views.reading import NO_TARGET, JsonObject, Reading, token_texts
from regard.models.base import Model

if TYPE_CHECKING:
    from regard.data.base import Specials
    from regard.data.tokenizers import Tokenizer

LONGEST = 1024  # tokens; each passes through the head once per layer


def lens(model: Model, tokenizer: Tokenizer, specials: Specials | None, reading: Reading) -> JsonObject:
    """For each layer and token the most probable next token, and the rank of the actual one."""
    count = reading.inputs.shape[1]
    if count > LONGEST:
        raise UserError(f"the lens reads at most {LONGEST:,} tokens, and the text has {count:,}; shorten it")
    streams: list[Tensor] = []

    def record(layer: int, x: Tensor) -> Tensor:
        streams.append(merged(model, x))
        return x

    top, ranks = [], []
    with evaluation_mode(model):
        with along(model, record):
            reading.features(model)
        for x in streams:
            predictions: list[JsonObject] = []
            layer_ranks: list[int | None] = []
            for logits, targets in reading.logits(model, model.norm(x)):
                best = logits.softmax(-1).max(-1)
                predictions += probabilities(tokenizer, specials, best.indices, best.values)
                actual = logits.gather(1, targets.clamp(min=0)[:, None])
                rank = (logits > actual).sum(-1).tolist()
                layer_ranks += [None if t == NO_TARGET else r for t, r in zip(targets.tolist(), rank, strict=True)]
            top.append(predictions)
            ranks.append(layer_ranks)
    return {
        "tokens": token_texts(tokenizer, specials, reading.inputs[0].tolist()),
        "layers": ["embedding", *(str(layer) for layer in range(1, len(streams)))],
        "top": top,
        "target_rank": ranks,
    }


def probabilities(tokenizer: Tokenizer, specials: Specials | None, tokens: Tensor, values: Tensor) -> list[JsonObject]:
    """Tokens [n] as text with their probabilities [n]."""
    texts = token_texts(tokenizer, specials, tokens.tolist())
    return [{"text": text, "probability": p} for text, p in zip(texts, values.tolist(), strict=True)]
