"""Activation patching: the residual stream at one layer is replaced by that of another text.

Where the prediction changes to that of the other text, the deciding information passed through this layer and position
(Meng et al. 2022, causal tracing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from regard.errors import UserError
from regard.look.capture.residual import along
from regard.look.capture.trace import evaluation_mode
from regard.look.interventions.ablate import compare_losses
from regard.look.interventions.lens import probabilities
from regard.look.views.reading import JsonObject, Reading
from regard.models.base import Model

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer

TOP = 5  # next tokens that are listed


def patch(
    model: Model, tokenizer: Tokenizer, reading: Reading, other: Reading, layer: int, positions: Sequence[int] | None
) -> JsonObject:
    """Loss of each token and most probable next tokens, before and after patching ``layer`` from ``other``.

    Layer 0 is the input of the first block, layer i the output of the i-th. Default ``positions``: all that both texts
    have.
    """
    streams: list[Tensor] = []

    def record(_: int, x: Tensor) -> Tensor:
        streams.append(x)
        return x

    with evaluation_mode(model):
        with along(model, record):
            other.features(model)
        if not 0 <= layer < len(streams):
            raise UserError(f"this model has the layers 0 to {len(streams) - 1}, not {layer}")
        chosen = _checked(positions, min(reading.inputs.shape[1], other.inputs.shape[1]))

        def replace(number: int, x: Tensor) -> Tensor:
            if number != layer:
                return x
            x = x.clone()
            x[:, chosen] = streams[layer][:, chosen]
            return x

        plain = reading.features(model)
        with along(model, replace):
            patched = reading.features(model)
        return {
            **compare_losses(reading.losses(model, plain), reading.losses(model, patched)),
            "next": {"before": _next(model, tokenizer, plain), "after": _next(model, tokenizer, patched)},
        }


def _checked(positions: Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(count) if positions is None else positions)
    for position in chosen:
        if not 0 <= position < count:
            raise UserError(f"both texts have the positions 0 to {count - 1}, not {position}")
    return chosen


def _next(model: Model, tokenizer: Tokenizer, features: Tensor) -> list[JsonObject]:
    best = model.head(features[0, -1]).float().softmax(-1).topk(min(TOP, model.config.vocabulary))
    return probabilities(tokenizer, None, best.indices, best.values)
