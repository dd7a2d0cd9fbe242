"""Random small GPTs with every kind of block and projection; weights are wild, so that none is zero by its start."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import settings
from torch import Tensor

from regard.attention import SoftmaxConfig, WindowConfig
from regard.models import GPT, GPTConfig
from regard.nn.attention import SeparateConfig, SharedConfig
from regard.nn.blocks.block import ParallelConfig, PostNormConfig, PreNormConfig, SandwichConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.feedforward import GELUConfig, ReLUSquaredConfig
from regard.nn.latent import LatentConfig
from regard.nn.norm import LayerNormConfig, NoNormConfig, RMSNormConfig
from regard.nn.positions.position import LearnedPositionConfig, NoPositionConfig, RotaryConfig

VOCABULARY, CONTEXT = 7, 64
BLOCKS = [PreNormConfig(), PostNormConfig(), SandwichConfig(), ParallelConfig(), ReversibleConfig()]
more = settings(max_examples=2 * settings().max_examples)  # there are many kinds
seeds = st.integers(0, 2**32 - 1)
blocks = st.sampled_from(BLOCKS)
latents = st.builds(
    LatentConfig,
    rank=st.sampled_from([None, 1, 6]),
    query_rank=st.sampled_from([None, 5]),
    rotated=st.sampled_from([None, 2, 4]),
    content=st.sampled_from([5, 9]) | st.just(5),
) | st.just(LatentConfig())
projections = st.one_of(st.just(SeparateConfig()), st.just(SharedConfig()), latents, latents)


@st.composite
def configs(
    draw: st.DrawFn, block: st.SearchStrategy = blocks, projection: st.SearchStrategy = projections
) -> GPTConfig:
    heads, repeat, made = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 2)), draw(projection)
    shared = isinstance(made, SharedConfig)
    return GPTConfig(
        vocabulary=VOCABULARY,
        context=CONTEXT,
        layers=repeat * draw(st.integers(1, 2)),
        repeat=repeat,
        heads=heads,
        kv_heads=None if shared else draw(st.sampled_from([None, 1])),
        width=16,
        bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        projection=made,
        attention=draw(st.sampled_from([SoftmaxConfig(), SoftmaxConfig(cap=2.0), WindowConfig(5)])),
        zero_init=False,
        norm=draw(st.sampled_from([LayerNormConfig(), RMSNormConfig(), NoNormConfig()])),
        position=draw(st.sampled_from([RotaryConfig(), NoPositionConfig(), LearnedPositionConfig()])),
        feedforward=draw(st.sampled_from([GELUConfig(2.0), ReLUSquaredConfig(1.0)])),
        block=draw(block),
    )


def wild(config: GPTConfig, seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """A model of this config with random weights everywhere, gains and biases included."""
    model, g = config.build().to(dtype), torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.2
        around = 1.0 if name.endswith("gain") else 0.0
        parameter.data = around + spread * torch.randn(parameter.shape, generator=g, dtype=dtype)
    return model.eval()


def tokens(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def agree(got: Tensor, want: Tensor, what: str) -> None:
    """Equal up to rounding, relative to the greatest number at hand; never NaN."""
    assert got.isfinite().all(), f"{what}: not finite"
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10 * max(1.0, float(want.abs().max())), msg=what)


def gradients(model: GPT, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))
