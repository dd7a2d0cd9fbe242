"""Twenty faults of sequence models that really happen, and sound models beside them.

The list was fixed before anything that shall find them was written. ``make()`` gives the keyword arguments of
``regard.prove.certify``: a ``model`` of this library, or a bare ``forward`` (tokens [B, N] to logits [B, N, V]) with,
if it can, a ``padded`` (tokens [B, N], of which the first ``lengths`` [B] of each row are real, to logits at the same
places). Everything but the fault is sound. ``claim`` must fail; another may fail with it, where one fault has two
faces (a model that sees the future cannot decode token by token as it reads).

What each claim says:

    future        a logit depends on its own token and earlier ones, in training and in evaluation
    padding       a row's logits are the same with padding behind it, and however much
    batching      a row's logits are the same whatever stands in the other rows
    packing       a document's logits are the same alone and in a packed row
    step          ``start`` and ``step``, whatever the pieces, give the logits of the whole forward pass
    finite        no logit of a real token is NaN or infinite
    order         the order of tokens matters if, and only if, ``positions``
    backends      every backend equals the reference, forward and backward
    tokenizer     ``decode(encode(text)) == text``, or a UserError
    loss          the loss counts each target that counts once, and a target is what follows its input
    accumulation  the terms of micro-batches add up to those of the whole batch
    overlap       what is evaluated on was not trained on
    checkpoint    a model made anew from its config, with the saved weights, gives the same logits
    export        ``torch.export`` keeps the logits
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fault_data import ALPHABET, MeanOfMeans, Sentences, ShuffledWindows, Skipping, Unshifted, text_data
from fault_gpts import Forgetful, ForgetfulConfig, Merged, OneAhead, Tiled, TiledConfig, Uncapped, UpperLeft
from fault_gpts import WiderOnceRolled as Wider
from fault_torch import (
    LENGTH,
    VOCABULARY,
    BlindRows,
    CountedFromPadding,
    CrowdedBatch,
    MaskedInTraining,
    OneTooFar,
    PaddingSeen,
    Plain,
    RoomyBatch,
    SortedBuckets,
    Stock,
    UnmaskedForWeights,
    Unpositioned,
    lively,
)

from regard.attention import WindowConfig
from regard.data import Characters, TextData
from regard.models import GPT, ConvolutionConfig, GPTConfig, RecurrentConfig
from regard.nn import LearnedPositionConfig, NoPositionConfig, PostNormConfig, SinusoidalConfig
from regard.tasks import Language

Arguments = dict[str, Any]
SIZES: Arguments = {"vocabulary": VOCABULARY, "context": LENGTH, "layers": 2, "width": 16}
LONG = 48  # tokens: enough for the buffer of a window to roll
WINDOW = WindowConfig(size=3)


class Fault(NamedTuple):
    """One thing wrong, and the claim that must fail for it."""

    name: str
    claim: str
    about: str
    make: Callable[[], Arguments]


class Healthy(NamedTuple):
    """Nothing wrong: every claim that can be judged must hold."""

    name: str
    make: Callable[[], Arguments]


def small(kind: type[GPTConfig] = GPTConfig, **changes: Any) -> GPTConfig:
    """A GPT that a test builds in a blink."""
    return kind(**{**SIZES, "heads": 4, "zero_init": False, **changes})


def given(model: torch.nn.Module, length: int = LENGTH, **more: Any) -> Arguments:
    """A model of this library."""
    return {"model": lively(model), "vocabulary": VOCABULARY, "length": length, **more}


def bare(model: torch.nn.Module, padded: bool = False, **more: Any) -> Arguments:
    """A model of anybody's: only what it computes is known."""
    lively(model)
    ways = {"forward": model, "padded": model.padded} if padded else {"forward": model}
    return {**ways, "vocabulary": VOCABULARY, "length": LENGTH, **more}


def asked_for_weights() -> Arguments:
    model = lively(UnmaskedForWeights())
    return {"forward": lambda tokens: model(tokens, weights=True), "vocabulary": VOCABULARY, "length": LENGTH}


def corrected(kept: bool) -> Arguments:
    model: Forgetful = small(ForgetfulConfig, kept=kept).build()
    model.correction.copy_(torch.linspace(-2, 2, VOCABULARY))  # as after some training
    return given(model)


FAULTS: list[Fault] = [
    Fault(
        "off-by-one mask",
        "future",
        "The causal mask begins one diagonal too high, so each token sees the one it shall foretell.",
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
        "Positions begin anew with each document of a packed row, but the mask knows no boundaries.",
        lambda: given(Merged(small())),
    ),
    Fault(
        "cache off by one",
        "step",
        "After the first call of step the position counter stands one too far.",
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
        lambda: given(Wider(small(attention=WINDOW, context=LONG)), LONG),
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
        lambda: given(small().build(), task=Language(), data=text_data(Unshifted, LENGTH)),
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
        lambda: given(small().build(), task=Language(), data=text_data(ShuffledWindows, LENGTH)),
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
]


def sound_text() -> Arguments:
    data = text_data(TextData, LENGTH)
    return given(small().build(), task=Language(), data=data, tokenizer=data.tokenizer)


HEALTHY: list[Healthy] = [
    Healthy("a GPT with its text", sound_text),
    Healthy("a GPT with padded sentences", lambda: given(small().build(), task=Language(), data=Sentences(LENGTH))),
    Healthy("a GPT with its alphabet", lambda: given(small().build(), tokenizer=Characters(ALPHABET))),
    Healthy(
        "a GPT with learned positions, shared heads, a cap and dropout, in training mode",
        lambda: given(GPT(small(position=LearnedPositionConfig(), kv_heads=2, cap=2.0, dropout=0.1))),
    ),
    Healthy("a GPT with a window", lambda: given(small(attention=WINDOW, context=LONG).build(), LONG)),
    Healthy(
        "a post-norm GPT of n-grams with sinusoidal positions",
        lambda: given(small(block=PostNormConfig(), position=SinusoidalConfig(), ngrams=3).build()),
    ),
    # What a causal model of several layers sees grows from place to place, so it knows the order even without
    # positions (Haviv et al. 2022): no claim about order can fail here.
    Healthy("a GPT without positions", lambda: given(small(position=NoPositionConfig()).build(), positions=False)),
    Healthy("a GPT whose checkpoint holds every buffer", lambda: corrected(kept=True)),
    Healthy("an LSTM", lambda: given(RecurrentConfig(**SIZES).build())),
    Healthy("a convolution", lambda: given(ConvolutionConfig(**SIZES, zero_init=False).build())),
    Healthy("a plain causal transformer", lambda: bare(Plain(), padded=True)),
    Healthy("a plain encoder", lambda: bare(Plain(causal=False), padded=True, causal=False)),
    Healthy("an encoder of sets", lambda: bare(Unpositioned(causal=False), True, causal=False, positions=False)),
    Healthy("a transformer of PyTorch's own, in training mode", lambda: bare(Stock())),
    Healthy("experts with seats for all", lambda: bare(RoomyBatch())),
]
