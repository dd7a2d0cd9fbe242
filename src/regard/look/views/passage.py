"""A passage to look at: the same one every time, out of the held-out text where there is one."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Passage(NamedTuple):
    """Tokens in a row, as they stand in the data."""

    tokens: Tensor  # [N]
    held_out: bool  # False: there is no held-out part, and the model was trained on these


def passage(data: Any, length: int, seed: int = 0) -> Passage:
    """The first `length` tokens of the held-out part; of a training window where nothing is held out."""
    batch = next(iter(data.validation_batches(1)), None)
    if batch is None:
        return Passage(data.batch(0, seed=seed, size=1).inputs[0, :length], False)
    real = batch.targets[0] >= 0  # the last row of a short text is filled up with places that do not count
    return Passage(batch.inputs[0][real][:length], True)
