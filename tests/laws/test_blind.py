"""Law 3: a row that may see nothing is zero with zero gradient, in every backend. Never NaN."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import naive
import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from hypothesis import given
from strategies import Case, cases, edges, examples, few, in_fair_shares, most_orders

from regard.attention import (
    BACKENDS,
    Entmax,
    Full,
    HardLookup,
    Normalizer,
    Packed,
    Padded,
    Range,
    Sigmoid,
    Softmax,
    SoftmaxNormalizer,
    TopKSoftmax,
    attend,
)
from regard.attention.backends.flex import Flex

RAN: Counter[str] = Counter()


@st.composite
def blind_cases(draw: st.DrawFn) -> Case:
    """Cases in which some rows, or all, see nothing, and some keys are seen by nobody."""
    case = draw(cases(few | st.just(70)))
    orders = most_orders(max(case.queries.length, case.key_slots.length))
    sparse = draw(edges(case.batch, orders))
    hidden = sparse.adjacency.clone()
    hidden[..., ::2, :] = False
    hidden[..., 1::3] = False
    cover = draw(st.sampled_from([type(sparse)(hidden), case.mask, ~Full()]))
    return replace(case, mask=case.mask & cover)


@in_fair_shares(RAN, sdpa=0.1, banded=0.25, reference=1.0, blind=0.6, wholly_blind=0.1)
@examples(2)
@given(blind_cases())
def test_a_row_that_sees_nothing_is_zero_with_zero_gradient(case: Case) -> None:
    seen = naive.seen(case.mask, case.queries, case.key_slots, case.batch)
    blind, unseen = ~seen.any(2), ~seen.any(1)  # [B, Q] and [B, K]
    RAN["cases"] += 1
    RAN["blind"] += bool(blind.any())
    RAN["wholly_blind"] += bool(blind.all())
    for name, backend in BACKENDS.items():
        auto = case.mechanism("auto")
        q, k, v = case.tensors()
        if backend.refuses(auto.call(q, k, v, auto.plan(case.mask, case.queries, case.keys, like=q))):
            continue
        RAN[name] += 1
        mechanism = case.mechanism(name)
        values = mechanism(q, k, v, mechanism.plan(case.mask, case.queries, case.keys, like=q)).values
        of_q, of_k, of_v = torch.autograd.grad(values.square().sum(), (q, k, v), materialize_grads=True)
        for x, rows in ((values, blind), (of_q, blind), (of_k, unseen), (of_v, unseen)):
            assert x.isfinite().all(), f"{name}: not finite"
            assert not x.transpose(1, 2)[rows].any(), f"{name}: a row that sees nothing, or is not seen, is not zero"


@in_fair_shares(RAN, blind=0.6, wholly_blind=0.1)
@given(blind_cases())
def test_a_row_that_sees_nothing_is_zero_in_flex(case: Case) -> None:
    blind = ~naive.seen(case.mask, case.queries, case.key_slots, case.batch).any(2)
    RAN["cases"] += 1
    RAN["blind"] += bool(blind.any())
    RAN["wholly_blind"] += bool(blind.all())
    mechanism = case.mechanism(Flex(interpreted=True))
    q, k, v = (x.detach() for x in case.tensors())
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # see test_backends.py
        values = mechanism(q, k, v, mechanism.plan(case.mask, case.queries, case.keys, like=q)).values
    assert values.isfinite().all()
    assert not values.transpose(1, 2)[blind].any()


@given(
    case=blind_cases(),
    normalizer=st.one_of(
        st.builds(TopKSoftmax, st.integers(1, 4), st.sampled_from([0.0, 1e-3, 0.5]), st.sampled_from([1.0, 1e-3])),
        st.builds(SoftmaxNormalizer, st.sampled_from([1.0, 1e-3])),
        st.builds(Sigmoid, st.sampled_from([0.0, -3.0])),
        st.builds(Entmax, st.sampled_from([1.2, 1.5, 2.0])),
        st.just(HardLookup()),
    ),
)
def test_blind_rows_stay_zero_for_every_normalizer(case: Case, normalizer: Normalizer) -> None:
    blind = ~naive.seen(case.mask, case.queries, case.key_slots, case.batch).any(2)
    mechanism = Softmax(bias=case.mechanism("auto").bias, scale=case.scale, normalizer=normalizer)
    q, k, v = case.tensors()
    values, weights = attend(
        q, k, v, case.mask, queries=case.queries, keys=case.key_slots, mechanism=mechanism, weights=True
    )
    of_q, of_k, of_v = torch.autograd.grad(values.square().sum(), (q, k, v), materialize_grads=True)
    assert weights is not None
    for x in (values, weights, of_q):
        assert x.isfinite().all()
        assert not x.transpose(1, 2)[blind].any()
    assert of_k.isfinite().all()
    assert of_v.isfinite().all()
    if not normalizer.sums_to_one:
        return
    shares = weights.sum(-1).transpose(1, 2)[~blind]
    assert torch.allclose(shares, torch.ones_like(shares), atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "banded"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (Padded(torch.tensor([0, 0]), 3), None),
        (Packed.of([[], []], length=3), None),
        (Range(3), Padded(torch.tensor([0, 0]), 3)),
    ],
    ids=["padding alone", "no documents", "nothing to look at"],
)
def test_a_batch_of_nothing_but_empty_slots(queries, keys, backend: str) -> None:
    """Its gradient is zero, not an error: one such micro-batch must not stop a training run."""
    mechanism = Softmax(backend=backend)
    q, k, v = (torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(3))
    values = mechanism(q, k, v, mechanism.plan(Full(), queries, keys, like=q)).values
    values.sum().backward()
    for x in (values, q.grad, k.grad, v.grad):
        assert x is None or not x.any()
