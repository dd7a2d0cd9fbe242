"""The passage that heads are measured on: always the same, from the validation part if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from regard.data.base import Data


class Passage(NamedTuple):
    """Consecutive tokens of the data."""

    tokens: Tensor  # [N]
    held_out: bool  # False: there is no validation part, and the model was trained on these


def passage(data: Data, length: int, seed: int = 0) -> Passage:
    """The first ``length`` tokens of the validation part, or of a training window if there is none."""
    batch = next(iter(data.validation_batches(1)), None)
    if batch is None:
        return Passage(data.batch(0, seed=seed, size=1).inputs[0, :length], False)
    real = batch.targets[0] >= 0  # the last row of a short text is padded
    return Passage(batch.inputs[0][real][:length], True)
