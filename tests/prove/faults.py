"""Thirty faults of sequence models that really happen.

``make()`` gives a ``ModelUnderTest`` of ``regard.prove``: a ``model`` of this library, or a ``forward`` (tokens [B, N]
to logits [B, N, V]) with, if it can, a ``padded`` (tokens [B, N] and the number of real tokens per row to logits).
Everything but the fault is sound. ``claim`` must fail; another may fail with it, if one fault has two effects (a model
that sees the future cannot decode token by token as it reads).

Twenty faults were listed before any claim was written (``listed``). The other ten were written later, by a person who
did not know how the claims are tested.
"""

from __future__ import annotations

from typing import Any

from fault_kit import KERNEL, LONG, WINDOW, Fault, asked_for_weights, bare, corrected, given, small
from faulty_data import (
    ALPHABET,
    CleanedUp,
    MeanOfMeans,
    RunningOn,
    Sentences,
    ShiftedTwice,
    ShuffledWindows,
    Skipping,
    Unshifted,
    text_data,
)
from faulty_layers import MeansOfTheFuture, MixedUpMasks, RowsForTime, StretchedRotary
from faulty_models import (
    ByHand,
    GuessedBoundaries,
    Merged,
    OneAhead,
    Tiled,
    TiledConfig,
    Uncapped,
    UnscaledConfig,
    UpperLeft,
    WiderOnceRolled,
    WipedByShortPieces,
)
from faulty_torch import (
    LENGTH,
    BlindRows,
    CountedFromPadding,
    CrowdedBatch,
    MaskedInTraining,
    OneTooFar,
    PaddingSeen,
    SortedBuckets,
    Unpositioned,
)

from regard.data import TextData
from regard.tasks import LanguageTask

FAULTS: list[Fault] = [
    Fault(
        "off-by-one mask",
        "future",
        "The causal mask begins one diagonal too high, so each token sees the one it has to predict.",
        lambda: bare(OneTooFar()),
    ),
    Fault(
        "mask lost when weights are asked for",
        "future",
        "A second path, taken for those who want the attention weights, was never given the mask.",
        asked_for_weights,
    ),
    Fault(
        "mask in training only",
        "future",
        "The mask hangs on the training flag: evaluation sees everything. The model comes in training mode.",
        lambda: bare(MaskedInTraining()),
    ),
    Fault(
        "buckets sorted over the future",
        "future",
        "Buckets of equal size are cut from the order of all tokens: a leak without any gradient.",
        lambda: bare(SortedBuckets()),
    ),
    Fault(
        "padding seen",
        "padding",
        "The padding mask of an encoder reaches its first layer only.",
        lambda: bare(PaddingSeen(causal=False), padded=True, causal=False),
    ),
    Fault(
        "positions counted from the padding",
        "padding",
        "Rows are padded at the left, and learned positions count from the first slot instead of the first token.",
        lambda: bare(CountedFromPadding(), padded=True),
    ),
    Fault(
        "experts with too few seats",
        "batching",
        "The experts' buffers serve the whole batch, first come, first served: some tokens find no expert.",
        lambda: bare(CrowdedBatch()),
    ),
    Fault(
        "packed documents see each other",
        "packing",
        "Positions restart with each document of a packed row, but the mask knows no boundaries.",
        lambda: given(Merged(small())),
    ),
    Fault(
        "cache off by one",
        "step",
        "After the first call of step the position counter is one too far.",
        lambda: given(OneAhead(small())),
    ),
    Fault(
        "causal square in the wrong corner",
        "step",
        "Several tokens that follow a cache see keys counted from its beginning instead of its end.",
        lambda: given(UpperLeft(small())),
    ),
    Fault(
        "window wider once the cache rolls",
        "step",
        "As soon as the buffer of a sliding window rolls, each token sees one key too many.",
        lambda: given(WiderOnceRolled(small(attention=WINDOW, context=LONG)), LONG),
    ),
    Fault(
        "blind rows are NaN",
        "finite",
        "Scores of what is not seen are -inf: padding that sees nothing is NaN, and the next layer spreads it.",
        lambda: bare(BlindRows(), padded=True),
    ),
    Fault(
        "positions thrown away",
        "order",
        "Position vectors are looked up and added, and the sum is thrown away: an encoder of bags of tokens.",
        lambda: bare(Unpositioned(causal=False), causal=False),
    ),
    Fault(
        "shared heads tiled",
        "backends",
        "One backend lays shared key heads out as 0 1 0 1 instead of 0 0 1 1.",
        lambda: given(Tiled(small(TiledConfig, kv_heads=2))),
    ),
    Fault(
        "tokenizer loses characters",
        "tokenizer",
        "A character that the tokenizer does not know is left out without a word.",
        lambda: given(small().build(), tokenizer=Skipping(ALPHABET)),
    ),
    Fault(
        "labels unshifted",
        "loss",
        "The targets are the inputs themselves, not what follows them.",
        lambda: given(small().build(), task=LanguageTask(), data=text_data(Unshifted, LENGTH)),
    ),
    Fault(
        "mean of means",
        "accumulation",
        "The loss of a batch is its mean and counts as one, so that short micro-batches weigh as much as full ones.",
        lambda: given(small().build(), task=MeanOfMeans(), data=Sentences(LENGTH)),
    ),
    Fault(
        "windows shuffled, then split",
        "overlap",
        "Overlapping windows are split at random: each held-out one is in training but for a token at its end.",
        lambda: given(small().build(), task=LanguageTask(), data=text_data(ShuffledWindows, LENGTH)),
    ),
    Fault(
        "checkpoint forgets a buffer",
        "checkpoint",
        "A running statistic that corrects the logits is in no checkpoint.",
        lambda: corrected(kept=False),
    ),
    Fault(
        "cap lost in export",
        "export",
        "A shorter way for the compiler leaves out the soft cap on the logits.",
        lambda: given(Uncapped(small(cap=2.0))),
    ),
    Fault(
        "rotary base grows with the text",
        "future",
        "Beyond 16 tokens the rates of rotary positions follow from the length: later tokens, whichever, turn all.",
        lambda: bare(StretchedRotary()),
        listed=False,
    ),
    Fault(
        "batch norm over time",
        "future",
        "Norms in training take mean and variance over rows and places, those to come included.",
        lambda: bare(MeansOfTheFuture()),
        listed=False,
    ),
    Fault(
        "masks of other rows",
        "padding",
        "The padding mask is repeated for the heads in the wrong order: heads get the masks of other rows.",
        lambda: bare(MixedUpMasks(causal=False), padded=True, causal=False),
        listed=False,
    ),
    Fault(
        "rows taken for time",
        "batching",
        "An encoder that wants time first is given rows first: tokens attend across the batch.",
        lambda: bare(RowsForTime(), causal=False),
        listed=False,
    ),
    Fault(
        "one-token documents run into the next",
        "packing",
        "Boundaries are guessed from falling positions, which do not fall after a document of one token.",
        lambda: given(GuessedBoundaries(small())),
        listed=False,
    ),
    Fault(
        "short pieces wipe the past",
        "step",
        "A convolution keeps of two or three tokens at once nothing but them; one or many at once are right.",
        lambda: given(WipedByShortPieces(KERNEL)),
        listed=False,
    ),
    Fault(
        "scale lost backward",
        "backends",
        "A kernel is right forward, but its gradient of the keys lacks the scale of the scores.",
        lambda: given(ByHand(small(UnscaledConfig))),
        listed=False,
    ),
    Fault(
        "spaces cleaned up",
        "tokenizer",
        "Decoding takes away the space before punctuation.",
        lambda: given(small(vocabulary=256).build(), vocabulary=256, tokenizer=CleanedUp()),
        listed=False,
    ),
    Fault(
        "shifted twice",
        "loss",
        "The data shift the targets and the task does it again: the model learns to predict the token after the next.",
        lambda: given(small().build(), task=ShiftedTwice(), data=text_data(TextData, LENGTH)),
        listed=False,
    ),
    Fault(
        "second round over all rows",
        "overlap",
        "After one epoch over its own rows, training continues with the held-out ones.",
        lambda: given(small().build(), task=LanguageTask(), data=RunningOn(LENGTH)),
        listed=False,
    ),
]
FAULTS_BY_NAME = {fault.name: fault for fault in FAULTS}


def made(name: str) -> Any:
    """The fault's ``ModelUnderTest``, in evaluation mode."""
    subject = FAULTS_BY_NAME[name].make()
    if subject.module is not None:
        subject.module.eval()
    return subject
