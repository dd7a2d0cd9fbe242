"""Sandwich and parallel blocks by their formulas, how every block starts, and that a compiler can trace them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from blocks_kit import BLOCKS, agree, gradients, tokens, wild
from torch import Tensor, nn

from regard.attention import Causal, Full, Padded, Range, Softmax
from regard.models import GPTConfig, TransformerConfig
from regard.nn import AttentionContext, BlockConfig
from regard.nn.attention import (
    AttentionSizes,
    CrossAttention,
    CrossAttentionContext,
    SelfAttention,
    SharedConfig,
    SharedSelfAttention,
)
from regard.nn.blocks.block import ParallelConfig, SandwichConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.feedforward import FeedForward
from regard.nn.latent import LatentConfig
from regard.nn.norm import LayerNormConfig, NoNormConfig, RMSNorm
from regard.nn.positions.position import NoRotation

SMALL = GPTConfig(vocabulary=7, context=64, layers=2, heads=2, width=16, zero_init=False)
WIDTH = 8


def parts(cross: bool) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    attention = SelfAttention(AttentionSizes(WIDTH, 2, 2), Softmax())
    network = FeedForward(WIDTH, 16, torch.nn.functional.gelu)
    norms = [RMSNorm(WIDTH) for _ in range(3)]
    other = {"cross": CrossAttention(AttentionSizes(WIDTH, 2, 2), Softmax()), "norm_cross": norms[2]} if cross else {}
    return [attention, network, *norms[:2]], other


def built(config: BlockConfig, cross: bool) -> Any:
    given, named = parts(cross)
    block = config.build(*given, dropout=0.0, **named).double()
    for name, parameter in block.named_parameters():
        if name.endswith("gain"):
            nn.init.normal_(parameter, mean=1, std=0.3)
    return block


def views(x: Tensor, memory: Tensor) -> tuple[AttentionContext, CrossAttentionContext]:
    context = AttentionContext(Softmax().plan(Causal(), Range(x.shape[1]), like=x), NoRotation())
    lengths = torch.full((len(memory),), memory.shape[1])
    plan = Softmax().plan(Full(), Range(x.shape[1]), Padded(lengths, memory.shape[1]), like=x)
    return context, CrossAttentionContext(plan, memory)


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


@pytest.mark.parametrize("cross", [False, True])
def test_a_sandwich_has_a_norm_on_both_sides_of_each_branch(cross: bool) -> None:
    block = built(SandwichConfig(), cross)
    x, memory = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 4, WIDTH).double()
    context, cross_context = views(x, memory)
    want = x + rms(block.attention(rms(x, block.norm_attention.gain), context), block.after_attention.gain)
    if cross:
        want = want + rms(block.cross(rms(want, block.norm_cross.gain), cross_context), block.after_cross.gain)
    want = want + rms(block.feedforward(rms(want, block.norm_feedforward.gain)), block.after_feedforward.gain)
    agree(block(x, context._replace(cross=cross_context)).detach(), want.detach(), "sandwich")
    assert (
        sum(p.numel() for name, p in block.named_parameters() if name.endswith("gain")) == (6 if cross else 4) * WIDTH
    )


@pytest.mark.parametrize("cross", [False, True])
def test_parallel_branches_start_from_one_norm(cross: bool) -> None:
    block = built(ParallelConfig(), cross)
    x, memory = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 4, WIDTH).double()
    context, cross_context = views(x, memory)
    normed = rms(x, block.norm_attention.gain)
    want = x + block.attention(normed, context) + block.feedforward(normed)
    want = want + block.cross(normed, cross_context) if cross else want
    agree(block(x, context._replace(cross=cross_context)).detach(), want.detach(), "parallel")
    assert sum(p.numel() for name, p in block.named_parameters() if name.endswith("gain")) == WIDTH


@pytest.mark.parametrize("kind", [SandwichConfig(), ParallelConfig()], ids=lambda kind: kind.kind)
def test_an_encoder_decoder_may_have_them(kind: BlockConfig) -> None:
    model = TransformerConfig(vocabulary=7, layers=1, heads=2, width=8, block=kind).build()
    source, lengths = tokens(2, 5, 0), torch.tensor([5, 3])
    model(tokens(2, 4, 1), source, lengths).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("norm", [LayerNormConfig(), NoNormConfig()], ids=lambda norm: norm.kind)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.kind)
@pytest.mark.parametrize("zero", [True, False])
def test_branches_start_at_zero_or_small_and_all_can_learn(block: BlockConfig, zero: bool, norm: Any) -> None:
    """At zero a block is the identity, and one step later no parameter is without a gradient."""
    torch.manual_seed(0)
    model = replace(SMALL, block=block, zero_init=zero, norm=norm).build()
    text = tokens(2, 6, 0)
    if block.final_norm:
        assert torch.allclose(model.features(text), model.norm(model.embed(text)), atol=1e-6) == zero
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()
    still = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not still


def test_a_sandwich_starts_its_second_gains_and_not_the_matrices_before_them() -> None:
    model = replace(SMALL, block=SandwichConfig(), layers=8).build()
    for name, parameter in model.named_parameters():
        if "after_" in name:
            assert torch.equal(parameter, torch.full_like(parameter, 0.25)), name
        elif name.endswith(("out.weight", "down.weight")):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.2), name


@pytest.mark.parametrize("projection", [None, LatentConfig()], ids=["separate", "latent"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.kind)
def test_a_compiler_traces_forward_and_backward(block: BlockConfig, projection: Any) -> None:
    """In one graph; reversible blocks too, though a model of them asks not to be compiled for memory's sake."""
    config = replace(SMALL, layers=1, block=block, projection=projection or SMALL.projection)
    model, text = wild(config, 0).train(), tokens(2, 6, 0)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    got, want = compiled(text), model(text)
    agree(got.detach(), want.detach(), "logits")
    one, two = gradients(model, got.square().sum()), gradients(model, want.square().sum())
    for name in two:
        agree(one[name], two[name], name)
    assert model.compilable == (not isinstance(block, ReversibleConfig))


def test_one_projection_for_all() -> None:
    model = replace(SMALL, projection=SharedConfig()).build()
    assert isinstance(model.get_submodule("blocks.0.attention"), SharedSelfAttention)
    assert model.get_parameter("blocks.0.attention.qkv.weight").shape == (16, 16)
    with pytest.raises(Exception, match="a shared projection has as many key heads as query heads; set kv_heads = 2"):
        replace(SMALL, projection=SharedConfig(), kv_heads=1).build()
