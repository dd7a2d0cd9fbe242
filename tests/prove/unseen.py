"""Ten more faults that really happen, written by somebody who did not know how the judge looks for them.

Same form as in ``faults``, whose docstring says what each claim means. Some are plain to see. Others show only beyond
some length, for documents or pieces of some lengths, in rows of different lengths, in training, backward or late.
"""

from __future__ import annotations

from typing import Any

import torch
from fault_data import Sentences, text_data
from fault_torch import LENGTH
from faults import SIZES, Fault, bare, given, small
from numpy.typing import ArrayLike
from torch.nn import functional as F
from unseen_models import (
    ByHand,
    GuessedBoundaries,
    MeansOfTheFuture,
    MixedUpMasks,
    RowsForTime,
    StretchedRotary,
    UnscaledConfig,
    WipedByShortPieces,
)

from regard.data import Bytes, TextBatch, TextData
from regard.models import ConvolutionConfig
from regard.tasks import Language, Term

CLEANED = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")
KERNEL = ConvolutionConfig(**SIZES, kernel=3, zero_init=False)  # the second layer reaches four tokens back


class CleanedUp(Bytes):
    """Spaces before punctuation are taken for traces of the tokenizer and cleaned up, whoever wrote them."""

    def decode(self, ids: ArrayLike) -> str:
        text = super().decode(ids)
        for trace in CLEANED:
            text = text.replace(trace, trace[1:])
        return text


class ShiftedTwice(Language):
    """The data shift the targets, and the task does so once more: a target is what follows after the next token."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        return super().terms(model, _later(batch))

    def counts(self, batch: Any) -> dict[str, torch.Tensor]:
        return super().counts(_later(batch))


def _later(batch: Any) -> Any:
    return batch._replace(targets=F.pad(batch.targets[:, 1:], (0, 1), value=-1))


class RunningOn(Sentences):
    """Training goes round all rows of the file, not only its own: after the first 64 come those that are held out."""

    def batch(self, position: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        first = (position * world + rank) * size
        return self.rows(torch.arange(first, first + size) % len(self.tokens))


UNSEEN: list[Fault] = [
    Fault(
        "rotary base grows with the text",
        "future",
        "Beyond 16 tokens the rates of rotary positions follow from the length: later tokens, whichever, turn all.",
        lambda: bare(StretchedRotary()),
    ),
    Fault(
        "batch norm over time",
        "future",
        "Norms in training take mean and variance over rows and places, those to come included.",
        lambda: bare(MeansOfTheFuture()),
    ),
    Fault(
        "masks of other rows",
        "padding",
        "The padding mask is repeated for the heads in the wrong order: heads get the masks of other rows.",
        lambda: bare(MixedUpMasks(causal=False), padded=True, causal=False),
    ),
    Fault(
        "rows taken for time",
        "batching",
        "An encoder that wants time first is given rows first: tokens attend across the batch.",
        lambda: bare(RowsForTime(), causal=False),
    ),
    Fault(
        "one-token documents run into the next",
        "packing",
        "Boundaries are guessed from falling positions, which do not fall after a document of one token.",
        lambda: given(GuessedBoundaries(small())),
    ),
    Fault(
        "short pieces wipe the past",
        "step",
        "A convolution keeps of two or three tokens at once nothing but them; one or many at once are right.",
        lambda: given(WipedByShortPieces(KERNEL)),
    ),
    Fault(
        "scale lost backward",
        "backends",
        "A kernel is right forward, but its gradient of the keys lacks the scale of the scores.",
        lambda: given(ByHand(small(UnscaledConfig))),
    ),
    Fault(
        "spaces cleaned up",
        "tokenizer",
        "Decoding takes away the space before punctuation.",
        lambda: given(small(vocabulary=256).build(), vocabulary=256, tokenizer=CleanedUp()),
    ),
    Fault(
        "shifted twice",
        "loss",
        "The data shift the targets and the task does it again: the model learns to foretell the token after the next.",
        lambda: given(small().build(), task=ShiftedTwice(), data=text_data(TextData, LENGTH)),
    ),
    Fault(
        "second round over all rows",
        "overlap",
        "Having gone through its own rows once, training goes on into those held out.",
        lambda: given(small().build(), task=Language(), data=RunningOn(LENGTH)),
    ),
]
