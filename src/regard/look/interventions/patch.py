"""Patching: the residual stream at one layer is replaced by another text's, and what follows is read again.

Where the answer turns into the other text's, what decided it had passed there (Meng et al. 2022, causal tracing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.errors import UserError
from regard.look.capture.residual import along
from regard.look.capture.trace import evaluation_mode
from regard.look.interventions.ablate import compared
from regard.look.views.reading import Reading, spelled

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer

LIKELIEST = 5


def patch(
    model: Any, tokenizer: Tokenizer, reading: Reading, other: Reading, layer: int, positions: Sequence[int] | None
) -> dict[str, Any]:
    """Loss of each token and the likeliest next tokens, before and after; no ``positions``: all that both texts have.

    Layer 0 is what goes into the first block, layer i what comes out of the i-th.
    """
    streams: list[Tensor] = []

    def note(_: int, x: Tensor) -> Tensor:
        streams.append(x)
        return x

    with evaluation_mode(model):
        with along(model, note):
            other.features(model)
        if not 0 <= layer < len(streams):
            raise UserError(f"this model has the layers 0 to {len(streams) - 1}, not {layer}")
        chosen = _chosen(reading.inputs.shape[1], other.inputs.shape[1], positions)

        def put(number: int, x: Tensor) -> Tensor:
            if number != layer:
                return x
            x = x.clone()
            x[:, chosen] = streams[layer][:, chosen]
            return x

        plain = reading.features(model)
        with along(model, put):
            patched = reading.features(model)
        return {
            **compared(reading.losses(model, plain), reading.losses(model, patched)),
            "next": {"before": _next(model, tokenizer, plain), "after": _next(model, tokenizer, patched)},
        }


def _chosen(length: int, others: int, positions: Sequence[int] | None) -> list[int]:
    both = min(length, others)
    if positions is None:
        return list(range(both))
    for place in positions:
        if not 0 <= place < both:
            raise UserError(f"both texts have the positions 0 to {both - 1}, not {place}")
    return list(positions)


def _next(model: Any, tokenizer: Tokenizer, features: Tensor) -> list[dict[str, Any]]:
    best = model.head(features[0, -1]).float().softmax(-1).topk(min(LIKELIEST, model.config.vocabulary))
    texts = spelled(tokenizer, None, best.indices.tolist())
    return [{"text": text, "probability": p} for text, p in zip(texts, best.values.tolist(), strict=True)]
