"""Random encoder-decoders: every kind of part, small sizes, and weights wild enough that nothing is zero at first."""

from __future__ import annotations

from typing import Literal

import hypothesis.strategies as st
import torch
from gpts import feedforwards, norms, positions
from strategies import generator
from torch import Tensor

from regard.attention import SoftmaxConfig
from regard.models import Transformer, TransformerConfig
from regard.nn.attention import SeparateConfig, SharedConfig
from regard.nn.blocks.block import PostNormConfig, PreNormConfig
from regard.nn.positions.position import SinusoidalConfig

CacheIndex = Literal["last", "same"]
VOCABULARY = 7
SOURCE_VOCABULARY = 5
CONTEXT = 48


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    position = draw(positions)
    beside = isinstance(position, SinusoidalConfig) and position.mode == "concatenate"
    memory: CacheIndex = draw(st.sampled_from(["last", "same"]))
    return TransformerConfig(
        vocabulary=VOCABULARY,
        source_vocabulary=draw(st.sampled_from([None, SOURCE_VOCABULARY])),
        context=CONTEXT,
        layers=draw(st.integers(1, 3)),
        decoder_layers=None if memory == "same" else draw(st.none() | st.integers(1, 3)),
        heads=draw(st.sampled_from([1, 2, 4])),
        width=draw(st.sampled_from([8, 16])),
        dropout=draw(st.sampled_from([0.0, 0.3])),  # at rest it must not show
        tied=not beside and draw(st.booleans()),
        joint=draw(st.sampled_from([None, False])),
        embedding_norm=draw(st.booleans()),
        scaled_head=draw(st.booleans()),
        scaled=draw(st.booleans()),
        bias=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        memory=memory,
        projection=draw(st.sampled_from([SeparateConfig(), SharedConfig(), SeparateConfig(size=6)])),
        attention=draw(st.sampled_from([SoftmaxConfig(), SoftmaxConfig(scale=1.0)])),
        across=draw(st.sampled_from([SoftmaxConfig(), SoftmaxConfig(scale=1.0)])),
        norm=draw(norms),
        position=position,
        feedforward=draw(feedforwards),
        block=draw(st.sampled_from([PreNormConfig(), PostNormConfig()])),
    )


def wild(config: TransformerConfig, seed: int, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model of this config with random weights everywhere, gains and biases included."""
    model, g = config.build().to(dtype), generator(seed)
    for name, parameter in model.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.2  # tame without norms too
        around = 1.0 if name.endswith("gain") else 0.0
        parameter.data = around + spread * torch.randn(parameter.shape, generator=g, dtype=dtype)
    return model.eval()


def targets(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator(seed))


def sources(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, SOURCE_VOCABULARY, (rows, length), generator=generator(seed + 1))
