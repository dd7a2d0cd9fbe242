"""Random GPTs: every kind of part, small sizes, and weights wild enough that nothing is zero by its start."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from strategies import agree, generator

from regard.attention import (
    AttentionConfig,
    BigBirdConfig,
    DilatedConfig,
    LinearConfig,
    LongformerConfig,
    LSHConfig,
    PerformerConfig,
    SegmentsConfig,
    SoftmaxConfig,
    SparseConfig,
    StridedConfig,
    TalkingConfig,
    TopKConfig,
    WindowConfig,
)
from regard.models import GPT, GPTConfig
from regard.nn import FeedForwardConfig
from regard.nn.attention import SeparateConfig, SharedConfig, SharedQKConfig
from regard.nn.blocks.block import ParallelConfig, PostNormConfig, PreNormConfig, SandwichConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import (
    GEGLUConfig,
    GELUConfig,
    NoFeedForwardConfig,
    ReLUConfig,
    ReLUSquaredConfig,
    SwiGLUConfig,
)
from regard.nn.latent import LatentConfig
from regard.nn.mixers import MambaConfig, MinGRUConfig, MinLSTMConfig, MixerConfig, S4DConfig
from regard.nn.norm import LayerNormConfig, NoNormConfig, RMSNormConfig
from regard.nn.positions.position import (
    AlibiConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5Config,
)
from regard.nn.positions.scaling import LinearScalingConfig, Llama3ScalingConfig, YarnScalingConfig

VOCABULARY = 7
CONTEXT = 96

scalings = st.sampled_from([LinearScalingConfig(4.0), YarnScalingConfig(4.0, fast=2.0), Llama3ScalingConfig(4.0)])
absolute = st.one_of(
    st.just(NoPositionConfig()),
    st.just(LearnedPositionConfig()),
    st.builds(RotaryConfig, base=st.sampled_from([10_000.0, 50.0])),
    st.builds(RotaryConfig, scaling=scalings),
    st.builds(SinusoidalConfig, base=st.sampled_from([10_000.0, 50.0])),
    st.builds(SinusoidalConfig, mode=st.just("concatenate"), width=st.sampled_from([None, 2])),
)
biased = st.one_of(
    st.just(AlibiConfig()),
    st.builds(RelativeConfig, distance=st.integers(1, 9)),
    st.builds(T5Config, buckets=st.sampled_from([4, 8]), furthest=st.integers(9, 40)),
)
positions = absolute | biased
exact = st.one_of(
    st.just(SoftmaxConfig()),
    st.builds(SoftmaxConfig, cap=st.sampled_from([2.0, 20.0])),
    st.builds(WindowConfig, size=st.integers(1, 9)),
    st.builds(WindowConfig, size=st.integers(1, 4), sinks=st.integers(1, 3)),
    st.builds(DilatedConfig, size=st.integers(1, 4), step=st.integers(1, 3)),
    st.just(StridedConfig(size=3, stride=4, far=3)),
    st.just(SparseConfig(stride=5)),
    st.just(LongformerConfig(size=4)),
    st.just(BigBirdConfig(block=4)),
    st.builds(TopKConfig, k=st.integers(1, 5), softness=st.sampled_from([0.0, 0.5])),
    st.just(TalkingConfig()),
    st.builds(LSHConfig, buckets=st.sampled_from([2, 4]), rounds=st.integers(1, 2), avoid_self=st.booleans()),
)
unbiased = st.one_of(  # those without scores that a bias could be added to
    st.builds(LinearConfig, features=st.sampled_from(["elu", "relu", "relu2", "softmax"]), normalize=st.booleans()),
    st.builds(PerformerConfig, features=st.sampled_from([None, 5]), orthogonal=st.booleans()),
    st.builds(S4DConfig, state=st.sampled_from([2, 6]), kernel=st.integers(0, 3), gate=st.booleans()),
    st.builds(MambaConfig, state=st.integers(1, 3), kernel=st.integers(0, 3), expand=st.sampled_from([1.0, 1.5])),
    st.builds(MinGRUConfig, kernel=st.integers(0, 3)) | st.builds(MinLSTMConfig, gate=st.booleans()),
    st.builds(
        SegmentsConfig,
        size=st.integers(1, 5),
        memory=st.integers(0, 5),
        summaries=st.integers(0, 3),
        rate=st.integers(1, 3),
        detached=st.booleans(),
    ),
)
attentions = st.one_of(exact, exact, unbiased)
norms = st.sampled_from([LayerNormConfig(), LayerNormConfig(bias=False), RMSNormConfig(), NoNormConfig()])
feedforwards = st.sampled_from(
    [
        ReLUConfig(2.0),
        GELUConfig(2.0),
        ReLUSquaredConfig(1.0),
        SwiGLUConfig(1.0),
        GEGLUConfig(1.0),
        NoFeedForwardConfig(),
        MoEConfig(1.0, experts=3),
        MoEConfig(1.0, experts=4, active=1, shared=1, activation="relu2"),
    ]
)
blocks = st.sampled_from([PreNormConfig(), PostNormConfig(), SandwichConfig(), ParallelConfig(), ReversibleConfig()])


@st.composite
def configs(draw: st.DrawFn, attention: st.SearchStrategy[AttentionConfig] = attentions) -> GPTConfig:
    heads, repeat = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
    kv_heads = draw(st.sampled_from([None, *(g for g in (1, 2, 4) if heads % g == 0)]))
    chosen = draw(attention)
    unscored = isinstance(chosen, LinearConfig | PerformerConfig | SegmentsConfig | MixerConfig)
    position = draw(absolute if unscored else positions)
    beside = isinstance(position, SinusoidalConfig) and position.mode == "concatenate"
    projections = [
        SeparateConfig(),
        SeparateConfig(),
        LatentConfig(),
        *([SharedConfig(), SharedQKConfig()] if kv_heads is None else []),
    ]
    return GPTConfig(
        vocabulary=VOCABULARY,
        context=CONTEXT,
        layers=repeat * draw(st.integers(1, 3 if repeat == 1 else 1)),
        repeat=repeat,
        heads=heads,
        kv_heads=kv_heads,
        width=8 * draw(st.integers(1, 2)) if heads < 4 else 16,
        tied=not beside and draw(st.booleans()),
        bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        cap=draw(st.sampled_from([None, 5.0])),
        ngrams=draw(st.integers(1, 3)),
        buckets=draw(st.sampled_from([2**15, 50])),  # exact tables, and hashed ones
        attention=chosen,
        global_every=draw(st.integers(0, 2 if repeat == 1 else 1)),
        zero_init=False,
        norm=draw(norms),
        position=position,
        projection=draw(st.sampled_from(projections)),
        feedforward=draw(feedforwards),
        block=draw(blocks),
    )


def wild(config: GPTConfig, seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """A model of this config with random weights everywhere, n-gram tables, gains and biases included."""
    model, g = config.build().to(dtype), generator(seed)
    for name, parameter in model.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.2  # tame without norms too
        around = 1.0 if name.endswith("gain") else 0.0
        parameter.data = around + spread * torch.randn(parameter.shape, generator=g, dtype=dtype)
    return model.eval()


def untouched(feedforward: FeedForwardConfig, got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal to the bit, except for experts: how many tokens one gets decides how its product is cut up."""
    if isinstance(feedforward, MoEConfig):
        agree(got, want, "what must not change")
    else:
        assert torch.equal(got, want)


def tokens(rows: int, length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator(seed))
