"""Random GPTs: every kind of part, small sizes, and weights wild enough that nothing is zero by its start."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from strategies import generator

from regard.attend import AttentionConfig, SoftmaxConfig, WindowConfig
from regard.layers import (
    GELUConfig,
    LayerNormConfig,
    LearnedConfig,
    NoNormConfig,
    NoPositionConfig,
    PostNormConfig,
    PreNormConfig,
    ReLUConfig,
    ReLUSquaredConfig,
    RMSNormConfig,
    RotaryConfig,
    SinusoidalConfig,
    SwiGLUConfig,
)
from regard.models import GPT, GPTConfig

VOCABULARY = 7
CONTEXT = 96

positions = st.one_of(
    st.just(NoPositionConfig()),
    st.just(LearnedConfig()),
    st.builds(RotaryConfig, base=st.sampled_from([10_000.0, 50.0])),
    st.builds(SinusoidalConfig, base=st.sampled_from([10_000.0, 50.0])),
    st.builds(SinusoidalConfig, mode=st.just("concatenate"), width=st.sampled_from([None, 2])),
)
attentions = st.one_of(
    st.just(SoftmaxConfig()),
    st.builds(WindowConfig, size=st.integers(1, 9)),
)
norms = st.sampled_from([LayerNormConfig(), LayerNormConfig(bias=False), RMSNormConfig(), NoNormConfig()])
feedforwards = st.sampled_from([ReLUConfig(2.0), GELUConfig(2.0), ReLUSquaredConfig(1.0), SwiGLUConfig(1.0)])


@st.composite
def configs(draw: st.DrawFn, attention: st.SearchStrategy[AttentionConfig] = attentions) -> GPTConfig:
    heads = draw(st.sampled_from([1, 2, 4]))
    position = draw(positions)
    beside = isinstance(position, SinusoidalConfig) and position.mode == "concatenate"
    return GPTConfig(
        vocabulary=VOCABULARY,
        context=CONTEXT,
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *(g for g in (1, 2, 4) if heads % g == 0)])),
        width=8 * draw(st.integers(1, 2)) if heads < 4 else 16,
        tied=not beside and draw(st.booleans()),
        bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        cap=draw(st.sampled_from([None, 5.0])),
        ngrams=draw(st.integers(1, 3)),
        buckets=draw(st.sampled_from([2**15, 50])),  # exact tables, and hashed ones
        attention=draw(attention),
        global_every=draw(st.integers(0, 2)),
        zero_init=False,
        norm=draw(norms),
        position=position,
        feedforward=draw(feedforwards),
        block=draw(st.sampled_from([PreNormConfig(), PostNormConfig()])),
    )


def wild(config: GPTConfig, seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """A model of this config with random weights everywhere, n-gram tables, gains and biases included."""
    model, g = config.build().to(dtype), generator(seed)
    for name, parameter in model.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.2  # tame without norms too
        around = 1.0 if name.endswith("gain") else 0.0
        parameter.data = around + spread * torch.randn(parameter.shape, generator=g, dtype=dtype)
    return model.eval()


def tokens(rows: int, length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator(seed))
