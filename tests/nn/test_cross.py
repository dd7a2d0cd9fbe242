"""Cross-attention: its formula, its beams, its one matrix; and self-attention with one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Causal, Full, Padded, Plan, Range, Softmax
from regard.nn import AttentionContext
from regard.nn.attention import (
    AttentionSizes,
    CrossAttention,
    CrossAttentionContext,
    SelfAttention,
    SeparateConfig,
    SharedConfig,
    SharedCrossAttention,
    SharedSelfAttention,
)
from regard.nn.positions.position import NoRotation, Rotary

WIDTH, HEADS = 16, 2
PROJECTIONS = {"separate": SeparateConfig(), "shared": SharedConfig()}


def layer(kind: str = "separate", **options: bool) -> CrossAttention:
    torch.manual_seed(0)
    built = PROJECTIONS[kind].cross_attention(AttentionSizes(WIDTH, HEADS, HEADS, **options), Softmax()).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.5)
    return built


def plan(queries: int, lengths: Tensor, places: int) -> Plan:
    return Softmax().plan(Full(), Range(queries), Padded(lengths, places), like=torch.zeros(1).double())


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def formula(x: Tensor, memory: Tensor, wq: nn.Linear, wk: tuple, wv: tuple, out: nn.Linear) -> Tensor:
    """Vaswani et al. 2017, sec. 3.2.2, head by head, for one sentence without padding."""
    q, k, v = wq(x), memory @ wk[0].T + wk[1], memory @ wv[0].T + wv[1]
    depth = WIDTH // HEADS
    heads = []
    for h in range(HEADS):
        part = slice(h * depth, (h + 1) * depth)
        weights = (q[:, part] @ k[:, part].T / math.sqrt(depth)).softmax(-1)
        heads.append(weights @ v[:, part])
    return out(torch.cat(heads, dim=-1))


def test_it_is_the_papers_formula() -> None:
    cross = layer(bias=True)
    x, memory, lengths = random(2, 3, WIDTH), random(2, 5, WIDTH), torch.tensor([5, 2])
    got = cross(x, CrossAttentionContext(plan(3, lengths, 5), memory))
    (wk, wv), (bk, bv) = cross.kv.weight.split(WIDTH), cross.kv.bias.split(WIDTH)
    for b, n in enumerate(lengths):
        want = formula(x[b], memory[b, :n], cross.q, (wk, bk), (wv, bv), cross.out)
        torch.testing.assert_close(got[b], want)


def test_one_matrix_projects_queries_and_memory() -> None:
    cross = layer("shared", bias=True)
    assert isinstance(cross, SharedCrossAttention)
    x, memory = random(2, 3, WIDTH), random(2, 5, WIDTH)
    got = cross(x, CrossAttentionContext(plan(3, torch.tensor([5, 5]), 5), memory))
    both = (cross.qkv.weight, cross.qkv.bias)
    for b in range(2):
        torch.testing.assert_close(got[b], formula(x[b], memory[b], cross.qkv, both, both, cross.out))


@pytest.mark.parametrize("kind", ["separate", "shared"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_beams_are_more_queries_of_one_row(kind: str, qk_norm: bool) -> None:
    cross = layer(kind, qk_norm=qk_norm)
    x, memory, lengths = random(2 * 3, 4, WIDTH), random(2, 5, WIDTH), torch.tensor([5, 2])
    copied = cross(x, CrossAttentionContext(plan(4, lengths.repeat_interleave(3), 5), memory.repeat_interleave(3, 0)))
    projected = cross.project(memory)
    assert projected.k.shape == (2, HEADS, 5, WIDTH // HEADS)
    torch.testing.assert_close(cross(x, CrossAttentionContext(plan(3 * 4, lengths, 5), projected)), copied)


def test_queries_and_keys_are_normalised_and_values_are_not() -> None:
    cross = layer(qk_norm=True)
    x, memory, cross_context = random(2, 3, WIDTH), random(2, 5, WIDTH), plan(3, torch.tensor([5, 4]), 5)
    k, v = cross.project(memory)
    power = (k / cross.get_parameter("norm_qk.gain")).square().mean(-1)
    torch.testing.assert_close(power, torch.ones_like(power), rtol=1e-4, atol=0)
    torch.testing.assert_close(v.transpose(1, 2).reshape(2, 5, WIDTH), memory @ cross.kv.weight[WIDTH:].T)
    torch.testing.assert_close(
        cross(2 * x, CrossAttentionContext(cross_context, memory)),
        cross(x, CrossAttentionContext(cross_context, memory)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_without_anything_to_look_at_it_says_so() -> None:
    with pytest.raises(ValueError, match="needs a memory"):
        layer()(random(1, 2, WIDTH), None)


@pytest.mark.parametrize("bias", [False, True])
def test_one_projection_has_a_third_of_the_parameters(bias: bool) -> None:
    def count(build: Callable[..., nn.Module]) -> int:
        built = build(AttentionSizes(WIDTH, HEADS, HEADS, bias=bias), Softmax())
        return sum(p.numel() for name, p in built.named_parameters() if not name.startswith("out"))

    assert 3 * count(SharedConfig().build) == count(SeparateConfig().build)
    assert 3 * count(SharedConfig().cross_attention) == count(SeparateConfig().cross_attention)


def test_one_matrix_is_three_equal_ones() -> None:
    """Shared self-attention is the separate kind with its matrix thrice, gradients added up; turned ones too."""
    shared = SharedSelfAttention(AttentionSizes(WIDTH, HEADS, HEADS, bias=True, qk_norm=True), Softmax()).double()
    separate = SelfAttention(AttentionSizes(WIDTH, HEADS, HEADS, bias=True, qk_norm=True), Softmax()).double()
    weights = shared.state_dict()
    separate.load_state_dict(weights | {f"qkv.{w}": torch.cat([weights[f"qkv.{w}"]] * 3) for w in ("weight", "bias")})
    x = random(2, 5, WIDTH)
    for turn in (NoRotation(), Rotary(WIDTH // HEADS).rotation(torch.arange(5)[None])):
        context = AttentionContext(Softmax().plan(Causal(), Range(5), like=x), turn)
        one, three = shared(x, context), separate(x, context)
        torch.testing.assert_close(one, three)
        (got,) = torch.autograd.grad(one.square().sum(), [shared.qkv.weight])
        (want,) = torch.autograd.grad(three.square().sum(), [separate.qkv.weight])
        torch.testing.assert_close(got, want.view(3, WIDTH, WIDTH).sum(0))


def test_one_projection_needs_as_many_key_heads_as_query_heads() -> None:
    with pytest.raises(ValueError, match="as many key heads as query heads: 2, not 1"):
        SharedSelfAttention(AttentionSizes(WIDTH, 2, 1), Softmax())
