"""Sound models: every claim that can be judged holds for them."""

from __future__ import annotations

from fault_kit import LONG, SIZES, WINDOW, Healthy, bare, corrected, given, small
from faulty_data import (
    ALPHABET,
    Sentences,
    text_data,
)
from faulty_torch import (
    LENGTH,
    Plain,
    RoomyBatch,
    Stock,
    Unpositioned,
)

from regard.data import Characters, TextData
from regard.models import GPT, ConvolutionConfig, RecurrentConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.positions.position import LearnedPositionConfig, NoPositionConfig, SinusoidalConfig
from regard.prove import ModelUnderTest
from regard.tasks import LanguageTask


def sound_text() -> ModelUnderTest:
    data = text_data(TextData, LENGTH)
    return given(small().build(), task=LanguageTask(), data=data, tokenizer=data.tokenizer)


HEALTHY: list[Healthy] = [
    Healthy("a GPT with its text", sound_text),
    Healthy("a GPT with padded sentences", lambda: given(small().build(), task=LanguageTask(), data=Sentences(LENGTH))),
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
    Healthy("a GPT without positions", lambda: given(small(position=NoPositionConfig()).build(), positional=False)),
    Healthy("a GPT whose checkpoint holds every buffer", lambda: corrected(kept=True)),
    Healthy("an LSTM", lambda: given(RecurrentConfig(**SIZES).build())),
    Healthy("a convolution", lambda: given(ConvolutionConfig(**SIZES, zero_init=False).build())),
    Healthy("a plain causal transformer", lambda: bare(Plain(), padded=True)),
    Healthy("a plain encoder", lambda: bare(Plain(causal=False), padded=True, causal=False)),
    Healthy("an encoder of sets", lambda: bare(Unpositioned(causal=False), True, causal=False, positional=False)),
    Healthy("a transformer of PyTorch's own, in training mode", lambda: bare(Stock())),
    Healthy("experts with seats for all", lambda: bare(RoomyBatch())),
]
