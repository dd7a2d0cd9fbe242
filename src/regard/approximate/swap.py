"""Replace the mechanisms of a trained GPT temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.attention import AttentionConfig, Mechanism
from regard.models.gpt import GPT


@contextmanager
def swapped(model: GPT, config: AttentionConfig, mechanisms: dict[int, Mechanism]) -> Iterator[GPT]:
    """The model with these mechanisms in these blocks (counted from 0), over the model's mask and ``config``'s pattern.

    On exit the model is restored.
    """
    blocks: list[Any] = list(model.blocks)
    before = model.masks, model.mask_of_layer, [block.attention.mechanism for block in blocks]
    block_of_layer = [i // model.config.repeat for i in range(model.config.layers)]
    # Layers with the same mask and the same kind of mechanism share a plan.
    uses = [(mask, block in mechanisms) for mask, block in zip(model.mask_of_layer, block_of_layer, strict=True)]
    distinct = list(dict.fromkeys(uses))
    try:
        model.masks = [model.masks[mask] & config.pattern() if new else model.masks[mask] for mask, new in distinct]
        model.mask_of_layer = [distinct.index(use) for use in uses]
        for number, mechanism in mechanisms.items():
            blocks[number].attention.mechanism = mechanism
        yield model
    finally:
        model.masks, model.mask_of_layer = before[:2]
        for block, mechanism in zip(blocks, before[2], strict=True):
            block.attention.mechanism = mechanism
