"""Layers: shapes, refusals, and the parts that laws do not speak of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Bias, Causal, Packed, Padded, Plan, Range, Softmax
from regard.errors import UserError
from regard.nn import AttentionContext, NormConfig, Position, PositionConfig
from regard.nn.attention import AttentionSizes, SelfAttention
from regard.nn.blocks.block import PostNorm, PostNormConfig, PreNorm, PreNormConfig
from regard.nn.embedding import NGrams
from regard.nn.feedforward import FeedForward, GatedFeedForward, ReLUConfig, SwiGLUConfig
from regard.nn.init import initialize, normal
from regard.nn.norm import NoNormConfig, RMSNormConfig
from regard.nn.positions.position import LearnedPositionConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig


def context(length: int, like: Tensor) -> AttentionContext:
    return AttentionContext(
        Softmax().plan(Causal(), Range(length), like=like), Position().rotation(torch.arange(length)[None])
    )


# Positions


def test_rotary_needs_an_even_head_width() -> None:
    with pytest.raises(UserError, match="a head width of 5 is odd; change width or heads"):
        RotaryConfig().build(width=10, head_width=5, context=8)


@pytest.mark.parametrize(
    ("config", "width", "given"),
    [
        (SinusoidalConfig(), 7, 7),
        (SinusoidalConfig(mode="concatenate", width=3), 8, 3),
        (SinusoidalConfig(mode="concatenate", width=8), 8, 8),
        (SinusoidalConfig(mode="concatenate"), 12, 3),
    ],
)
def test_sinusoids_need_an_even_width_that_fits(config: PositionConfig, width: int, given: int) -> None:
    with pytest.raises(UserError, match=f"an even width below the model's {width}, not {given}"):
        config.build(width=width, head_width=4, context=8)


def test_added_and_concatenated_sinusoids() -> None:
    x, phase = torch.randn(2, 5, 6), torch.arange(5)[None]
    added = SinusoidalConfig().build(width=6, head_width=2, context=8)
    assert added.token_width(6) == 6
    beside = SinusoidalConfig(mode="concatenate", width=4).build(width=10, head_width=2, context=8)
    assert beside.token_width(10) == 6
    out = beside.embed(x, phase)
    assert out.shape == (2, 5, 10)
    assert torch.equal(out[..., :6], x)
    assert torch.equal(out[0, :, 6:], out[1, :, 6:])
    assert not torch.equal(added.embed(x, phase), x)


def test_a_concatenated_sinusoid_takes_a_quarter_by_default() -> None:
    assert SinusoidalConfig(mode="concatenate").build(width=16, head_width=4, context=8).token_width(16) == 12


def test_learned_positions_end_somewhere() -> None:
    learned = LearnedPositionConfig().build(width=4, head_width=2, context=8)
    assert learned.limit == 8
    assert NoPositionConfig().build(width=4, head_width=2, context=8).limit is None
    x = torch.zeros(1, 3, 4)
    packed = learned.embed(x, torch.tensor([[0, 1, 0]]))
    assert torch.equal(packed[0, 0], packed[0, 2]), "phases restart with each document"


def test_no_positions_change_nothing() -> None:
    none = NoPositionConfig().build(width=4, head_width=2, context=8)
    x = torch.randn(1, 2, 3, 4)
    assert none.rotation(torch.arange(3)[None]).apply(x) is x
    assert torch.equal(none.embed(x[0], torch.arange(3)[None]), x[0])


def test_rotary_keeps_lengths_and_leaves_phase_zero_alone() -> None:
    rotary = RotaryConfig().build(width=8, head_width=8, context=8)
    x = torch.randn(1, 5, 2, 8)  # [B, N, H, D]
    turned = rotary.rotation(torch.tensor([[0, 1, 7, 300, 100_000]])).apply(x)
    assert torch.equal(turned[:, 0], x[:, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert turned.dtype == x.dtype


def test_rotary_is_exact_at_large_phases() -> None:
    """Angles in float64: at phase 10^6 float32 angles would be wrong in the second digit."""
    rotary = RotaryConfig().build(width=64, head_width=64, context=8)
    x = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    phase = torch.tensor([[1_000_003]])
    exact = rotary.rotation(phase).apply(x.double())
    assert (rotary.rotation(phase).apply(x) - exact).abs().max() < 1e-5


# Norms and feed-forward networks


def test_no_norm_is_the_identity() -> None:
    assert isinstance(NoNormConfig().build(4), nn.Identity)


def test_unknown_parts_do_not_build() -> None:
    with pytest.raises(NotImplementedError):
        NormConfig().build(4)
    with pytest.raises(NotImplementedError):
        PositionConfig().build(width=4, head_width=2, context=8)


def test_hidden_widths() -> None:
    relu = ReLUConfig(4.0).build(6, bias=True)
    assert isinstance(relu, FeedForward)
    assert relu.up.out_features == 24
    swiglu = SwiGLUConfig().build(96, bias=False)
    assert isinstance(swiglu, GatedFeedForward)
    assert swiglu.down.in_features == 256
    assert swiglu.gate_up.out_features == 512
    assert swiglu.gate_up.bias is None


# Attention and blocks


def test_heads_are_cut_as_the_paper_cuts_them() -> None:
    """Against one head at a time, from the rows of the fused projection: heads of q, then of k, then of v."""
    attention = SelfAttention(AttentionSizes(8, heads=4, kv_heads=2, bias=True), Softmax())
    nn.init.normal_(attention.qkv.bias)
    x = torch.randn(2, 5, 8)
    q, k, v = attention.qkv(x).split([8, 4, 4], dim=-1)
    heads = []
    for h in range(4):
        g = h // 2
        ours, theirs, values = q[..., 2 * h : 2 * h + 2], k[..., 2 * g : 2 * g + 2], v[..., 2 * g : 2 * g + 2]
        scores = ours @ theirs.mT / 2**0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ values)
    torch.testing.assert_close(attention(x, context(5, x)), attention.out(torch.cat(heads, dim=-1)))


def test_qk_norm_makes_scores_ignore_the_size_of_queries_and_keys() -> None:
    x = torch.randn(1, 4, 8)
    for qk_norm, unmoved in ((True, True), (False, False)):
        attention = SelfAttention(AttentionSizes(8, heads=2, kv_heads=2, qk_norm=qk_norm), Softmax())
        nn.init.normal_(attention.qkv.weight)
        before = attention(x, context(4, x))
        attention.qkv.weight.data[:16] *= 3  # queries and keys, not values
        assert torch.allclose(attention(x, context(4, x)), before, atol=1e-5) == unmoved


@pytest.mark.parametrize("config", [PreNormConfig(), PostNormConfig()])
def test_where_the_norms_stand(config) -> None:
    attention = SelfAttention(AttentionSizes(8, 2, 2), Softmax())
    norms = [RMSNormConfig().build(8) for _ in range(2)]
    block = config.build(attention, ReLUConfig(2.0).build(8, bias=False), *norms, dropout=0.0)
    x = torch.randn(2, 4, 8)
    here = context(4, x)
    if isinstance(block, PreNorm):
        y = x + attention(norms[0](x), here)
        want = y + block.feedforward(norms[1](y))
        assert config.final_norm
    else:
        assert isinstance(block, PostNorm)
        y = norms[0](x + attention(x, here))
        want = norms[1](y + block.feedforward(y))
        assert not config.final_norm
    torch.testing.assert_close(block(x, here), want)


def test_dropout_on_residual_branches_in_training_only() -> None:
    block = PreNormConfig().build(
        SelfAttention(AttentionSizes(8, 2, 2), Softmax()),
        ReLUConfig().build(8, bias=False),
        nn.Identity(),
        nn.Identity(),
        dropout=0.5,
    )
    x = torch.randn(2, 4, 8)
    here = context(4, x)
    assert not torch.equal(block(x, here), block(x, here))
    block.eval()
    assert torch.equal(block(x, here), block(x, here))


# N-grams


def ngrams(longest: int, buckets: int = 10_000) -> NGrams:
    return NGrams(vocabulary=4, longest=longest, buckets=buckets, width=3)


def embedded(made: NGrams, tokens: Tensor, phase: Tensor) -> Tensor:
    return made(nn.functional.pad(tokens, (made.longest - 1, 0)), phase)


def test_ngrams_tell_every_pair_and_triple_apart() -> None:
    made = ngrams(3)
    seen = {}
    for a in range(4):
        for b in range(4):
            for c in range(4):
                last = embedded(made, torch.tensor([[a, b, c]]), torch.arange(3)[None])[0, 2]
                seen[tuple(last.tolist())] = (a, b, c)
    assert len(seen) == 64


def test_ngrams_do_not_look_past_the_start_of_a_document() -> None:
    made = ngrams(3)
    tokens = torch.tensor([[1, 2, 3, 1, 2, 3]])
    phase = Packed.of([[3, 3]]).phases(torch.device("cpu"))
    out = embedded(made, tokens, phase)
    assert torch.equal(out[:, :3], out[:, 3:])
    assert not torch.equal(embedded(made, tokens, torch.arange(6)[None])[:, 3:4], out[:, 3:4])


def test_hashed_ngrams_stay_inside_their_table() -> None:
    made = NGrams(vocabulary=50_257, longest=4, buckets=101, width=2)
    assert [table.num_embeddings for table in made.tables] == [101] * 3
    tokens = torch.randint(0, 50_257, (4, 200))
    assert embedded(made, tokens, Padded(torch.tensor([200] * 4), 200).phases(tokens.device)).shape == (4, 200, 2)


def test_a_bias_keeps_the_initial_values_of_its_vectors() -> None:
    class Rates(Bias):
        def __init__(self) -> None:
            super().__init__()
            self.rate, self.table = nn.Parameter(torch.full((4,), 0.5)), nn.Parameter(torch.zeros(4, 3))

    bias = Rates()
    initialize(nn.ModuleList([bias]), normal(0.02), normal(0.02))
    assert bias.rate.eq(0.5).all()
    assert bias.table.ne(0).all()


def test_a_mechanism_that_returns_no_out_is_named() -> None:
    class Loose(Softmax):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:  # type: ignore[override]
            return v

    layer, x = SelfAttention(AttentionSizes(8, 2, 2), Loose()), torch.randn(1, 3, 8)
    with pytest.raises(UserError, match=r"the mechanism Loose returned a Tensor; return regard\.attention\.Out"):
        layer(x, context(3, x))
