"""Latent attention: DeepSeek's own, a memory of latents only, and decoding that never unfolds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
import torch
from blocks_kit import agree, configs, latents, more, seeds, tokens, wild
from hypothesis import given
from torch import Tensor

from regard.attention import Causal, DecodeInput, KVCache, Mechanism, Out, Plan, Range, Softmax
from regard.errors import UserError
from regard.models import GPT, GPTConfig
from regard.nn import AttentionContext
from regard.nn.attention import AttentionSizes
from regard.nn.blocks.block import PreNormConfig
from regard.nn.latent import LatentAttention, LatentConfig
from regard.nn.positions.position import NoPositionConfig, RotaryConfig
from regard.train import MuonConfig

SMALL = GPTConfig(vocabulary=7, context=64, layers=2, heads=2, width=16, zero_init=False, projection=LatentConfig())


def attention_of(model: GPT, layer: int = 0) -> LatentAttention:
    return cast(LatentAttention, model.get_submodule(f"blocks.{layer}.attention"))


def stacked(weight: Tensor, heads: int, *widths: int) -> Tensor:
    """Rows that lie head by head, each head's parts together, put part by part instead."""
    parts = weight.unflatten(0, (heads, sum(widths))).split(list(widths), dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])


@pytest.mark.parametrize("query_rank", [None, 6])
def test_it_is_the_attention_of_deepseek(query_rank: int | None) -> None:
    """`transformers`' DeepseekV3Attention with the same weights, its rotary halves laid out as ours; and gradients."""
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    width, heads, rank, turned, content, length = 20, 2, 7, 4, 5, 9
    settings: Any = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": content,
        "v_head_dim": width // heads,
        "rope_interleave": False,
    }
    config = DeepseekV3Config(**settings)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    theirs: Any = DeepseekV3Attention(config, 0).double()
    for norm in (theirs.kv_a_layernorm, theirs.q_a_layernorm):
        if norm is not None:
            torch.nn.init.normal_(norm.weight, mean=1, std=0.3)
    latent = LatentConfig(rank, query_rank, turned, content)
    ours: Any = latent.build(AttentionSizes(width, heads, heads), Softmax()).double()
    queries = theirs.q_proj if query_rank is None else theirs.q_b_proj
    first = stacked(queries.weight, heads, content, turned) if query_rank is None else theirs.q_a_proj.weight
    ours.qkv.weight.data = torch.cat((first, theirs.kv_a_proj_with_mqa.weight)).detach()
    if query_rank is not None:
        ours.query_up.weight.data = stacked(queries.weight, heads, content, turned).detach()
        ours.norm_query.gain.data = theirs.q_a_layernorm.weight.detach()
    ours.norm_latent.gain.data = theirs.kv_a_layernorm.weight.detach()
    ours.up.weight.data = stacked(theirs.kv_b_proj.weight, heads, content, width // heads).detach()
    ours.out.weight.data = theirs.o_proj.weight.detach()

    x = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    phase = torch.arange(length)[None]
    turn = RotaryConfig().build(width=width, head_width=turned, context=length).rotation(phase)
    cos, sin = (part.expand(2, -1, -1, -1)[:, :, 0].repeat(1, 1, 2) for part in cast(Any, turn))
    want = theirs(x, (cos, sin), None)[0]
    got = ours(x, AttentionContext(ours.mechanism.plan(Causal(), Range(length), like=x), turn))
    close = {"rtol": 0, "atol": 2e-6}  # their norms are computed in float32
    torch.testing.assert_close(got, want, **close)
    upstream = torch.randn_like(want)
    got.backward(upstream)
    mine, x.grad = x.grad, None
    want.backward(upstream)
    torch.testing.assert_close(mine, x.grad, **close)
    torch.testing.assert_close(ours.out.weight.grad, theirs.o_proj.weight.grad, **close)
    unfolded = stacked(theirs.kv_b_proj.weight.grad, heads, content, width // heads)
    torch.testing.assert_close(ours.up.weight.grad, unfolded, **close)


@more
@given(configs(st.just(PreNormConfig()), latents), seeds, st.integers(1, 12), st.booleans())
def test_absorbed_decoding_equals_unfolding(config: GPTConfig, seed: int, length: int, grouped: bool) -> None:
    """The same steps with W_k on the query's side and W_v behind the attention, and without."""
    config = replace(config, kv_heads=1 if grouped else None)
    text, found, ran = tokens(2, length + 3, seed), [], []
    for absorbs in (True, False):
        model = wild(config, seed)
        for layer in range(config.layers // config.repeat):
            attention: Any = attention_of(model, layer)
            inner = attention._absorbed
            attention._absorbs = lambda absorbs=absorbs: absorbs
            attention._absorbed = lambda *given, inner=inner: ran.append(1) or inner(*given)
        _, state = model.step(text[:, :length], model.start(2, length + 3))
        found.append(model.step(text[:, length:], state)[0])
    agree(found[0], found[1], "three more tokens")
    assert len(ran) == config.layers


def test_only_latents_and_rotated_keys_are_remembered() -> None:
    model = SMALL.build()
    state = model.start(3, 10)
    assert [[tuple(x.shape) for x in layer] for layer in state.layers] == [[(3, 1, 10, 8), (3, 1, 10, 4)]] * 2
    kept = sum(x.numel() for x in state.layers[0]) // 30
    assert kept == LatentConfig().cache_width(16, 2, 2) == 12
    assert kept < replace(SMALL, projection=GPTConfig().projection).projection.cache_width(16, 2, 2) == 32


class Sum(Mechanism):
    """The sum of values weighed by products, whatever their order: a state of constant size."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        return Out((q @ k.mT).tril() @ v, None)

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> Any:
        return KVCache(like.new_zeros(batch, heads, width, width), like.new_zeros(batch, heads, 1, 1))

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, memory: KVCache, arrival: DecodeInput) -> Out:
        past = q @ memory.k
        memory.k.add_(k.mT @ v)
        return Out(past + (q @ k.mT).tril() @ v, None)


def test_a_mechanism_with_a_state_of_its_own_keeps_it() -> None:
    model, text = wild(SMALL, 0), tokens(2, 9, 0)
    for layer in range(2):
        attention_of(model, layer).mechanism = Sum()
    want, state, got = model(text).detach(), model.start(2, 9), []
    assert state.layers[0].k.shape == (2, 2, 8, 8)
    for piece in text.split([4, 1, 4], dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    agree(torch.cat(got, dim=1), want, "steps")
    with pytest.raises(UserError, match="keeps a state for keys as wide as values"):
        LatentConfig(content=8).build(AttentionSizes(16, 2, 2), Sum())


def test_the_order_is_seen_through_the_rotated_part_only() -> None:
    """Without positions tokens before the last may be exchanged; with rotary ones not."""
    text = tokens(1, 8, 0)
    other = text[:, [1, 0, *range(2, 8)]]
    assert not torch.equal(text, other)
    for position, same in ((NoPositionConfig(), True), (RotaryConfig(), False)):
        model = wild(replace(SMALL, layers=1, position=position), 0)
        assert torch.allclose(model(text)[:, -1], model(other)[:, -1], atol=1e-12) == same


def test_widths() -> None:
    assert LatentConfig().widths(128, 4) == (16, 16, 64, None)
    assert LatentConfig().widths(1024, 16) == (32, 32, 256, None)  # 4 heads' width
    assert LatentConfig(content=64).head_width(1024, 16) == 96
    model = replace(SMALL, projection=LatentConfig(query_rank=6)).build()
    attention = attention_of(model)
    assert attention.qkv.parts == (6, 8, 4)
    assert sum(attention.qkv.parts) == attention.qkv.out_features
    assert sum(attention.up.parts) == attention.up.out_features
    assert sum(cast(Any, attention.query_up).parts) == cast(Any, attention.query_up).out_features
    model(tokens(1, 5, 0)).sum().backward()
    MuonConfig().build(model).step(1.0)  # every stacked matrix by itself


@pytest.mark.parametrize(
    ("projection", "problem"),
    [
        (LatentConfig(rank=0), "rank must be at least 1, not 0"),
        (LatentConfig(query_rank=0), "query_rank must be at least 1, not 0"),
        (LatentConfig(rotated=3), "rotated must be an even number from 2 on, not 3"),
        (LatentConfig(rotated=8), "heads of width 8 have no room beside 8 rotated ones; set content = 4"),
    ],
)
def test_impossible_widths(projection: LatentConfig, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, projection=projection).build()
