"""Talking heads: equal to the formula, plain attention when silent, and steppable inside a model."""

from __future__ import annotations

import pytest
import torch
from dense_kit import (
    dense,
    drawn,
    each_head,
    heads,
    learns_and_decodes,
    masks,
    qkv,
    raw_scores,
    rows,
    same,
    seeds,
    softmax_over,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Alibi, Causal, LayerSpec, Range, Relative, SoftCap, Softmax
from regard.attention.backends import reference as blocked
from regard.attention.mechanisms.talking import HeadExchange, Talking, TalkingConfig
from regard.errors import UserError
from regard.models import GPTConfig


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a test are short, and are to be cut all the same."""
    monkeypatch.setattr(blocked, "MOST", 7)
    monkeypatch.setattr(blocked, "FEWEST", 7)


def exchanges(mechanism: Talking) -> list[HeadExchange]:
    return [module for module in mechanism.modules() if isinstance(module, HeadExchange)]


def talkative(count: int, seed: int, **options) -> Talking:
    mechanism = Talking(count, **options).double()
    with torch.no_grad():
        for part, values in zip(exchanges(mechanism), drawn(seed, (2, count, count))[0] / 2, strict=False):
            part.talk.copy_(values)
    return mechanism


@given(rows(), masks, heads, st.booleans(), st.booleans(), st.sampled_from([None, "relative", "cap"]), seeds)
def test_it_is_the_formula(held, mask, heads, before: bool, after: bool, bent: str | None, seed: int) -> None:
    (slots, batch), count = held, heads[0]
    relative = Relative(count, 3).double()
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(seed))
    bias = {None: None, "relative": relative, "cap": SoftCap(1.5)}[bent]
    mechanism = talkative(count, seed, bias=bias, before=before, after=after)
    q, k, v = inputs = qkv(seed, batch, heads, slots.length)
    # j hears i: P[i, j] is 1 + talk on the diagonal
    parts = [mechanism.score, mechanism.normalizer]
    first, second = (torch.eye(count) + (part.talk[0] if isinstance(part, HeadExchange) else 0.0) for part in parts)
    first, second = first.double(), second.double()
    scores = torch.einsum("bhqk,hj->bjqk", raw_scores(q, k), first)
    if bent == "cap":
        scores = 1.5 * torch.tanh(scores / 1.5)
    if bent == "relative":
        phase = slots.at(torch.arange(slots.rows)[:, None], torch.arange(slots.length)[None]).phase
        apart = (phase[:, :, None] - phase[:, None, :]).clamp(-3, 3) + 3  # [B|1, Q, K]
        scores = scores + relative.table[:, apart].transpose(0, 1)
    weights = softmax_over(scores, dense(mask, slots, slots, batch)[:, None].expand(scores.shape))
    want = torch.einsum("bhqk,hj,bjke->bjqe", weights, second, each_head(v, count))
    got = mechanism(q, k, v, mechanism.plan(mask, slots, like=q)).values
    same(got, want, [*inputs, *mechanism.parameters()])


@given(rows(), masks, heads, seeds)
def test_silent_heads_are_plain_attention(held, mask, heads, seed: int) -> None:
    slots, batch = held
    q, k, v = inputs = qkv(seed, batch, heads, slots.length)
    silent, plain = Talking(heads[0], Alibi(heads[0])).double(), Softmax(bias=Alibi(heads[0]).double())
    got, want = (m(q, k, v, m.plan(mask, slots, like=q)).values for m in (silent, plain))
    same(got, want, inputs)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_model_decodes_as_it_reads_and_learns(kv_heads: int) -> None:
    model = learns_and_decodes(TalkingConfig(), kv_heads)
    assert all(m.talk.any() for m in model.modules() if isinstance(m, HeadExchange)), "they learned to talk"


def test_a_model_starts_silent() -> None:
    model = GPTConfig(layers=2, width=16, attention=TalkingConfig()).build()
    assert [m.talk.any().item() for m in model.modules() if isinstance(m, HeadExchange)] == [False] * 4


def test_dropout_is_for_training_only_and_keeps_the_mean() -> None:
    mechanism = talkative(2, 0, dropout=0.5)
    q, k, v = (x.detach() for x in qkv(0, 1, (2, 2), 6))
    plan = mechanism.plan(Causal(), Range(6), like=q)
    want = mechanism.eval()(q, k, v, plan).values
    mechanism.train()
    torch.manual_seed(0)
    draws = torch.stack([mechanism(q, k, v, plan).values for _ in range(2000)])
    error = draws.std(0) / 2000**0.5
    assert draws.std() > 0
    assert ((draws.mean(0) - want).abs() <= 5 * error + 1e-12).all()


def test_a_compiler_can_trace_it() -> None:
    mechanism = Talking(2)
    q, k, v = (torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mechanism(q, k, v, mechanism.plan(Causal(), Range(9), like=q)).values

    (want,) = torch.autograd.grad(run(q, k, v).square().sum(), exchanges(mechanism)[0].talk)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    (got,) = torch.autograd.grad(compiled(q, k, v).square().sum(), exchanges(mechanism)[0].talk)
    torch.testing.assert_close(got, want)


def test_a_backend_that_cannot_hear_other_heads_is_refused() -> None:
    with pytest.raises(UserError, match="cannot run on the backend 'sdpa'; set backend = auto"):
        TalkingConfig().mechanism(LayerSpec(2, 2, 8, 16, backend="sdpa"))
