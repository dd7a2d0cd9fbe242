"""Law 5a: what attention does with heads, order, width and temperature, through the one operator."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import naive
import torch
from gpts import configs, tokens, wild
from hypothesis import given
from strategies import Case, agree, cases, examples, few, generator, seeds

from regard.attention import (
    Call,
    Causal,
    Dot,
    Full,
    Plan,
    Range,
    Softmax,
    SoftmaxConfig,
    SoftmaxNormalizer,
    TopKSoftmax,
    attend,
)
from regard.models import GPTConfig
from regard.nn.positions.position import NoPositionConfig


@examples(4)
@given(cases(few | st.just(70)))
def test_grouped_heads_are_repeated_heads(case: Case) -> None:
    """Query heads in a row share a key/value head; its gradient is the sum of theirs."""
    mechanism = case.mechanism("auto")
    q, k, v = case.tensors()
    plan = mechanism.plan(case.mask, case.queries, case.keys, like=q)
    grouped = mechanism(q, k, v, plan).values
    of_groups = torch.autograd.grad(grouped.square().sum(), (q, k, v), materialize_grads=True)
    repeated = [torch.stack([x] * case.shared, dim=2).flatten(1, 2).detach().requires_grad_() for x in (k, v)]
    alone = mechanism(q, *repeated, plan).values
    agree(grouped.detach(), alone.detach(), "values")
    of_q, *of_repeated = torch.autograd.grad(alone.square().sum(), (q, *repeated), materialize_grads=True)
    summed = [g.unflatten(1, (case.kv_heads, case.shared)).sum(2) for g in of_repeated]
    for name, got, want in zip("qkv", of_groups, [of_q, *summed], strict=True):
        agree(got, want, f"gradient of {name}")


@examples(2)
@given(
    seeds, st.integers(1, 20), st.integers(1, 3), st.sampled_from(["reference", "small_cpu", "sdpa", "banded", "auto"])
)
def test_self_attention_without_positions_is_permutation_equivariant(
    seed: int, length: int, heads: int, backend: str
) -> None:
    g = generator(seed)
    q, k, v = torch.randn(3, 2, heads, length, 4, generator=g, dtype=torch.float64)
    shuffled = torch.randperm(length, generator=g)
    mechanism = Softmax(backend=backend)
    straight = attend(q, k, v, mechanism=mechanism).values
    mixed = attend(q[:, :, shuffled], k[:, :, shuffled], v[:, :, shuffled], mechanism=mechanism).values
    agree(mixed, straight[:, :, shuffled], "shuffled tokens")
    keys_only = attend(q, k[:, :, shuffled], v[:, :, shuffled], mechanism=mechanism).values
    agree(keys_only, straight, "shuffled keys: a set has no order")


@given(configs(st.just(SoftmaxConfig())), seeds, st.integers(2, 12))
def test_the_last_token_of_a_gpt_without_positions_sees_a_set(config: GPTConfig, seed: int, length: int) -> None:
    """One layer, causal mask, no positions, no n-grams: the last token's logits ignore the order of those before."""
    model = wild(replace(config, layers=1, repeat=1, ngrams=1, position=NoPositionConfig()), seed)
    text = tokens(1, length, seed)
    shuffled = torch.cat((torch.randperm(length - 1, generator=generator(seed)), torch.tensor([length - 1])))
    agree(model(text[:, shuffled])[:, -1].detach(), model(text)[:, -1].detach(), "the last token")


@given(seeds, st.sampled_from([4, 16, 64, 256]))
def test_scaled_scores_have_variance_one(seed: int, width: int) -> None:
    """q and k standard normal: q·k/√D has variance 1 whatever D, where q·k alone has variance D."""
    q, k = torch.randn(2, 1, 1, 512, width, generator=generator(seed), dtype=torch.float64)
    plan = Plan(Full(), Range(512), Range(512), False)
    call = Call(q, k, k, plan, Dot(), SoftmaxNormalizer())
    scores = call.score(q, k)
    assert abs((scores * call.factor).var().item() - 1) < 0.3
    assert abs(scores.var().item() / width - 1) < 0.3
    weights = attend(q, k, k, weights=True).weights
    assert weights is not None
    entropy = -(weights * weights.log()).sum(-1).mean().item()
    assert abs(entropy - (math.log(512) - 0.5)) < 0.3  # that of a softmax over standard normal scores


@examples(2)
@given(cases(few, biased=False))
def test_temperature_zero_is_hard_lookup_and_the_limit(case: Case) -> None:
    """At 0 each row reads its best key, ties in equal parts; small temperatures come as near as their gaps allow."""
    case = replace(case, scale=1.0, dtype=torch.float64)
    q, k, v = (x.detach() for x in case.tensors())
    told = {"mask": case.mask, "queries": case.queries, "keys": case.key_slots, "weights": True}
    hard = attend(q, k, v, **told, mechanism=Softmax(scale=1.0, temperature=0.0))
    cold = attend(q, k, v, **told, mechanism=Softmax(scale=1.0, temperature=1e-3))
    scores = q @ k.repeat_interleave(case.shared, dim=1).transpose(2, 3)
    seen = naive.seen(case.mask, case.queries, case.key_slots, case.batch)[:, None].expand(scores.shape)
    scores = scores.masked_fill(~seen, -torch.inf)
    top = scores.max(-1, keepdim=True)
    want = ((scores == top.values) & seen).double()
    want = want / want.sum(-1, keepdim=True).clamp(min=1)
    assert hard.weights is not None
    assert cold.weights is not None
    assert torch.equal(hard.weights, want)
    agree(hard.values, want @ v.repeat_interleave(case.shared, dim=1), "hard lookup")
    second = scores.masked_fill(want > 0, -torch.inf).amax(-1, keepdim=True)
    clear = (~seen.any(-1, keepdim=True) | (top.values - second > 0.05)).expand(want.shape)
    assert torch.allclose(cold.weights[clear], want[clear], atol=1e-12)


def test_hard_lookup_shares_ties_equally() -> None:
    q, k = torch.ones(1, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0], [2.0, 0.0], [0.5, 0.5]])
    found = attend(q, k, torch.eye(4), mechanism=Softmax(temperature=0.0), weights=True)
    assert found.weights is not None
    assert found.weights.tolist() == [[0.5, 0.0, 0.5, 0.0]]
    assert found.values.tolist() == [[0.5, 0.0, 0.5, 0.0]]


@given(cases(few), st.integers(1, 14))
def test_top_k_is_the_softmax_over_the_best_keys(case: Case, k: int) -> None:
    """The hard cut: as many keys as asked for or seen, none better left out, the others' shares kept in proportion."""
    case = replace(case, dtype=torch.float64)
    mechanism = case.mechanism("reference")
    told = {"mask": case.mask, "queries": case.queries, "keys": case.key_slots, "mechanism": mechanism, "weights": True}
    q, keys, v = (x.detach() for x in case.tensors())
    with torch.no_grad():
        want = mechanism(q, keys, v, mechanism.plan(case.mask, case.queries, case.keys, like=q))
        whole = attend(q, keys, v, **told)
        mechanism.normalizer = TopKSoftmax(k, temperature=case.temperature)
        cut = attend(q, keys, v, **told)
    assert whole.weights is not None
    assert cut.weights is not None
    agree(whole.values, want.values, "asking for the weights")
    seen = naive.seen(case.mask, case.queries, case.key_slots, case.batch)[:, None].expand(whole.weights.shape)
    rows = (x.flatten(0, -2).tolist() for x in (whole.weights, cut.weights, seen))
    for before, after, visible in zip(*rows, strict=True):
        near = [j for j, there in enumerate(visible) if there]
        kept, left = [j for j in near if after[j] > 0], [j for j in near if after[j] == 0]
        assert len(kept) == min(k, len(near))
        assert min((before[j] for j in kept), default=1) >= max((before[j] for j in left), default=0) - 1e-12
        total = sum(before[j] for j in kept)
        assert all(math.isclose(after[j], before[j] / total, abs_tol=1e-9) for j in kept)


@given(seeds, st.integers(1, 8))
def test_one_query_is_a_row_of_many(seed: int, length: int) -> None:
    q, k, v = torch.randn(3, length, 4, generator=generator(seed), dtype=torch.float64)
    many = attend(q, k, v, Causal()).values
    for i in range(length):
        one = attend(q[i : i + 1], k, v, Causal(), queries=Range(1, start=i), keys=Range(length)).values
        agree(one[0], many[i], f"query {i}")
