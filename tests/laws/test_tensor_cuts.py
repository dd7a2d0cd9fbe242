"""How tensor parallelism cuts layers, in one process: the ranks' outputs and gradients add up to the whole layer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensor_kit import OneLayer, in_layout, reassembled
from torch import Tensor
from torch.nn import functional as F

from regard.attention import (
    Alibi,
    Bias,
    Causal,
    Chain,
    GATConfig,
    LinearConfig,
    Range,
    Relative,
    RelativeBuckets,
    SoftCap,
    Softmax,
    TalkingConfig,
)
from regard.attention.masks.tables import Edges
from regard.errors import UserError
from regard.models import GPTConfig, GraphConfig, ModelConfig, RecurrentConfig
from regard.nn.attention import (
    AttentionContext,
    AttentionSizes,
    CrossAttention,
    CrossAttentionContext,
    SelfAttention,
    SeparateConfig,
    SharedQKSelfAttention,
    SharedSelfAttention,
)
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import FeedForward, GatedFeedForward, ReLUSquaredConfig, SwiGLUConfig
from regard.nn.latent import LatentConfig
from regard.nn.lora import install_lora
from regard.nn.mixers import MambaConfig
from regard.nn.positions.position import NoRotation, T5Config
from regard.parallel.tensor import RankShare

Run = Callable[[Any, Tensor], Tensor]
WIDTH, LENGTH = 12, 6
RANGES = RankShare.ranges


def check_cut(layer: Any, ranks: int, run: Run, ends_with: str) -> None:
    """``run(layer, x)``, whose last matrix is ``ends_with``, and its gradients are the sums of those of all ranks."""
    whole: Any = OneLayer(layer).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn_like(parameter))
    models = [in_layout(whole, rank, ranks) for rank in range(ranks)]
    held = reassembled([(dict(model.named_parameters()), model.cuts) for model in models])
    for name, parameter in whole.named_parameters():
        assert torch.equal(held[name], parameter), name
    x, weights = (torch.randn(2, LENGTH, WIDTH, dtype=torch.float64) for _ in range(2))

    def backward(parts: list[Any]) -> tuple[Tensor, Tensor]:
        given = x.clone().requires_grad_()
        out = torch.stack([run(part.layer, given) for part in parts]).sum(0)
        bias = whole.layer.get_submodule(ends_with).bias  # each rank adds it
        out = out if bias is None else out - (len(parts) - 1) * bias.detach()
        (out * weights).sum().backward()
        assert given.grad is not None
        return out.detach(), given.grad

    for one, other in zip(backward([whole]), backward(models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    gradients = [({name: p.grad for name, p in model.named_parameters()}, model.cuts) for model in models]
    found = reassembled(gradients, add={name for name in held if "norm_qk" in name})
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-9, msg=name)


def self_attention(layer: SelfAttention, x: Tensor) -> Tensor:
    plan = layer.mechanism.plan(Causal(), Range(LENGTH), like=x)
    return layer(x, AttentionContext(plan, NoRotation()))


def cross_attention(layer: CrossAttention, x: Tensor) -> Tensor:
    plan = layer.mechanism.plan(Causal(), Range(LENGTH), Range(LENGTH), like=x)
    return layer(x, CrossAttentionContext(plan, x.flip(0)))


@given(
    ranks=st.sampled_from([2, 3, 4]),
    groups=st.integers(1, 2),
    shared=st.integers(1, 2),
    width=st.integers(1, 3),
    qk_norm=st.sampled_from(["", "shared", "separate"]),
    bias=st.booleans(),
    cross=st.booleans(),
)
def test_heads_of_each_stacked_matrix_are_cut_separately(ranks, groups, shared, width, qk_norm, bias, cross):
    kv_heads = ranks * groups
    sizes = AttentionSizes(WIDTH, kv_heads * shared, kv_heads, bias=bias, qk_norm=bool(qk_norm))
    config: Any = SeparateConfig(size=width, norms=qk_norm or "shared")
    layer = (config.build_cross if cross else config.build)(sizes, Softmax(backend="reference"))
    check_cut(layer, ranks, cross_attention if cross else self_attention, "out")


@pytest.mark.parametrize("kind", [SharedSelfAttention, SharedQKSelfAttention])
def test_shared_projections(kind):
    check_cut(kind(AttentionSizes(WIDTH, 4, 4, bias=True), Softmax()), 2, self_attention, "out")


@pytest.mark.parametrize(
    "bias",
    [Alibi(6), Relative(6, 4), RelativeBuckets(6, 8, 16), Chain(SoftCap(3.0), Alibi(6), Relative(6, 4))],
    ids=lambda bias: type(bias).__name__,
)
def test_each_rank_biases_its_own_heads(bias: Bias):
    """The slopes of ALiBi and the tables of relative positions differ by head."""
    check_cut(SelfAttention(AttentionSizes(WIDTH, 6, 6), Softmax(bias=bias)), 3, self_attention, "out")


@given(st.sampled_from([2, 3, 4]), st.integers(1, 4), st.booleans(), st.booleans())
def test_hidden_units_of_gate_and_up_are_cut_separately(ranks, units, gated, bias):
    network = GatedFeedForward if gated else FeedForward
    layer = network(WIDTH, ranks * units, F.silu, bias=bias)
    check_cut(layer, ranks, lambda layer, x: layer(x), "down")


@pytest.mark.parametrize(
    ("layer", "run", "last"),
    [
        (SelfAttention(AttentionSizes(WIDTH, 4, 4), Softmax()), self_attention, "out"),
        (GatedFeedForward(WIDTH, 4, F.silu), lambda layer, x: layer(x), "down"),
    ],
    ids=["attention", "network"],
)
def test_adjacent_rows_of_a_fused_matrix_are_wrong(layer, run, last, monkeypatch):
    """What ``ColwiseParallel`` would give each rank: the first one has queries, or gates, only."""
    monkeypatch.setattr(RankShare, "ranges", lambda share, *parts: RANGES(share, sum(parts)))
    with pytest.raises(AssertionError, match=r"not close"):
        check_cut(layer, 2, run, last)


def test_a_model_on_the_meta_device_is_cut_by_shape():
    config = GPTConfig(width=32, heads=4, kv_heads=2, layers=1)
    with torch.device("meta"):
        model = config.build()
    cut, built = in_layout(model, 1, 2), in_layout(config.build(), 1, 2)
    assert cut.cuts == built.cuts
    assert {name: p.shape for name, p in cut.named_parameters()} == {n: p.shape for n, p in built.named_parameters()}
    assert all(parameter.is_meta for parameter in cut.parameters())
    weight = cut.cuts["blocks.0.attention.qkv.weight"]
    assert weight.shape == (64, 32)
    assert weight.ranges == ((16, 32), (40, 48), (56, 64))


def test_a_table_that_layers_share_is_cut_once_under_each_of_its_names():
    model = in_layout(GPTConfig(width=32, heads=4, layers=2, position=T5Config()).build(), 1, 2)
    tables = {name for name, _ in model.named_parameters(remove_duplicate=False) if name.endswith("table")}
    assert len(tables) == 3
    assert tables <= model.cuts.keys()
    assert {tuple(model.get_parameter(name).shape) for name in tables} == {(2, 32)}


def test_experts_and_everything_outside_the_blocks_stay_whole():
    model = in_layout(GPTConfig(width=32, heads=4, layers=1, feedforward=MoEConfig(experts=2)).build(), 0, 2)
    assert model.cuts.keys() == {f"blocks.0.attention.{part}.weight" for part in ("qkv", "out")}


GPT = GPTConfig(width=32, heads=4, layers=1)


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        (
            replace(GPT, heads=4, kv_heads=2),
            4,
            "has 2 key/value heads, .*--layout.tensor 2, or change --model.kv_heads",
        ),
        (replace(GPT, heads=8), 3, "has 8 heads, .*--layout.tensor 2, or change --model.heads"),
        (replace(GPT, feedforward=ReLUSquaredConfig(ratio=65 / 32)), 2, "65 hidden units, .*--model.feedforward.ratio"),
        (replace(GPT, dropout=0.1), 2, "dropout on attention weights, .*--model.attention_dropout 0"),
        (replace(GPT, feedforward=SwiGLUConfig(dropout=0.1)), 2, "on hidden units, .*--model.feedforward.dropout 0"),
        (replace(GPT, attention=TalkingConfig()), 2, "has Talking attention, .*--model.attention softmax"),
        (replace(GPT, attention=LinearConfig()), 2, "has LinearAttention attention, .*--model.attention softmax"),
        (replace(GPT, attention=GATConfig()), 2, "has GraphScore attention, .*--model.attention softmax"),
        (replace(GPT, attention=MambaConfig()), 2, "is a SelectiveMixer, .*--model.attention softmax"),
        (replace(GPT, projection=LatentConfig()), 2, "is a LatentAttention, .*--model.projection separate"),
        (RecurrentConfig(width=32), 2, "RecurrentModel has no attention or .*--layout.tensor 1, and --layout.shard"),
    ],
    ids=lambda value: "" if isinstance(value, int | ModelConfig) else value.partition(",")[0],
)
def test_refusals_name_the_part_and_the_fix(config, ranks, words):
    with pytest.raises(UserError, match=words):
        in_layout(config.build(), 0, ranks)


def test_dropout_outside_of_the_cut_layers_is_allowed():
    """Every rank draws the same masks for the same embeddings and residual branches."""
    in_layout(replace(GPT, dropout=0.1, attention_dropout=0.0).build(), 0, 2)


def test_adapters_are_refused():
    model = GPT.build()
    install_lora(model, ["qkv"])
    with pytest.raises(UserError, match=r"qkv is a LoRALinear, .*--train.adapt full"):
        in_layout(model, 0, 2)


class PenaltyPerHead(Bias):
    """A bias from outside the package."""

    def __init__(self, heads: int):
        super().__init__()
        self.penalty = torch.nn.Parameter(torch.zeros(heads))

    def adjust(self, score: Tensor, pairs: Any) -> Tensor:
        return score - self.penalty[pairs.head]


def test_an_unknown_bias_with_parameters_is_refused():
    layer = SelfAttention(AttentionSizes(WIDTH, 4, 4), Softmax(bias=PenaltyPerHead(4)))
    with pytest.raises(UserError, match=r"PenaltyPerHead bias, .*--model.position rotary"):
        in_layout(OneLayer(layer), 0, 2)


def test_a_mask_that_differs_by_head_is_refused():
    layer = in_layout(OneLayer(SelfAttention(AttentionSizes(WIDTH, 4, 4), Softmax())), 0, 2).layer
    x = torch.randn(1, LENGTH, WIDTH)
    by_head = Edges(torch.ones(1, 4, LENGTH, LENGTH).bool())
    plan = layer.mechanism.plan(by_head, Range(LENGTH), like=x)
    with pytest.raises(UserError, match=r"differs by head, .*--layout.tensor 1"):
        layer(x, AttentionContext(plan, NoRotation()))


def test_biases_of_the_edges_of_a_graph_are_refused():
    config = GraphConfig(context=4, kinds=2, edge_kinds=2, numbers=0, width=16, layers=1, heads=4)
    model = in_layout(config.build(), 0, 2)
    nodes, edges = torch.zeros(1, 4).long(), torch.zeros(1, 1, 3).long()
    with pytest.raises(UserError, match=r"numbers to the scores of each head, .*--layout.tensor 1"):
        model(torch.zeros(1, 4, 0), nodes, edges)
