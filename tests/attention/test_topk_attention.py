"""Top-k as a model's attention, and the blocked backend it runs on."""

from __future__ import annotations

import pytest
import torch
from dense_kit import (
    dense,
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

from regard.attention import (
    Additive,
    Alibi,
    BackendRefused,
    Causal,
    Chain,
    HardLookup,
    LayerSpec,
    Range,
    SoftCap,
    Softmax,
    SoftmaxNormalizer,
    TopKSoftmax,
    run,
)
from regard.attention.backends import reference as blocked
from regard.attention.backends.reference import Blocked
from regard.attention.mechanisms.masked import TopKConfig


@pytest.fixture
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a test are short, and are to be cut all the same."""
    monkeypatch.setattr(blocked, "MOST", 7)
    monkeypatch.setattr(blocked, "FEWEST", 7)


pytestmark = pytest.mark.usefixtures("several_blocks")


@given(rows(), masks, heads, st.integers(1, 6), seeds)
def test_the_hard_cut_is_the_softmax_over_the_best_keys(held, mask, heads, best: int, seed: int) -> None:
    slots, batch = held
    mechanism = TopKConfig(best).mechanism(LayerSpec(heads[0], heads[1], 4, 24))
    q, k, v = inputs = qkv(seed, batch, heads, slots.length)
    scores, seen = raw_scores(q, k), dense(mask, slots, slots, batch)[:, None]
    # a key stays if fewer than `best` of those seen beat it
    beaten = (seen[..., None, :] & (scores[..., None, :] > scores[..., :, None])).sum(-1)
    want = softmax_over(scores, seen & (beaten < best)) @ each_head(v, heads[0])
    same(mechanism(q, k, v, mechanism.plan(mask, slots, like=q)).values, want, inputs)


@given(
    rows(),
    rows(),
    masks,
    heads,
    st.sampled_from([None, (3, 0.0), (3, 0.5)]),
    st.sampled_from([1.0, 0.7, 0.0]),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_blocks_equal_the_reference(held, others, mask, heads, cut, temperature, own, biased, seed: int) -> None:
    slots, batch = held
    keys = None if own or others[0].rows not in (1, batch) else others[0]
    q, *_ = qkv(seed, batch, heads, slots.length)
    _, k, v = qkv(seed + 1, batch, heads, (slots if keys is None else keys).length)
    bias = Chain(SoftCap(2.0), Alibi(heads[0])) if biased else None
    softmax = SoftmaxNormalizer(temperature) if temperature else HardLookup()
    normalizer = softmax if cut is None or not temperature else TopKSoftmax(cut[0], cut[1], temperature)
    one, two = (
        Softmax(bias=bias, normalizer=normalizer, backend=backend).double() for backend in (Blocked(), "reference")
    )
    got, want = (m(q, k, v, m.plan(mask, slots, keys, like=q)).values for m in (one, two))
    same(got, want, [q, k, v])


def test_learned_scores_get_their_gradient() -> None:
    torch.manual_seed(0)
    score = Additive(4, 4, 3).double()
    q, k, v = qkv(0, 2, (2, 2), 20)
    one, two = (Softmax(score, backend=backend) for backend in (Blocked(), "reference"))
    got, want = (m(q, k, v, m.plan(Causal(), Range(20), like=q)).values for m in (one, two))
    same(got, want, [q, k, v, *score.parameters()])


def test_long_rows_hold_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything kept for the backward pass, together, is far less than N² numbers."""
    monkeypatch.setattr(blocked, "MOST", 64)
    n, kept = 1024, {}
    q, k, v = (torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3))
    mechanism = TopKConfig().mechanism(LayerSpec(1, 1, 4, n))

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        values = mechanism(q, k, v, mechanism.plan(Causal(), Range(n), like=q)).values
    assert sum(kept.values()) < n * n / 16
    values.sum().backward()


@pytest.mark.parametrize("softness", [0.0, 0.5])
def test_a_model_decodes_as_it_reads_and_learns(softness: float) -> None:
    learns_and_decodes(TopKConfig(k=3, softness=softness))


def test_weights_are_asked_of_the_reference() -> None:
    mechanism = TopKConfig(2).mechanism(LayerSpec(1, 1, 4, 8))
    assert isinstance(mechanism, Softmax)
    q, k, v = qkv(0, 1, (1, 1), 8)
    call = mechanism.call(q, k, v, mechanism.plan(Causal(), Range(8), like=q), weights=True)
    assert call.plan.backend == "blocked"
    with pytest.raises(BackendRefused, match="it stores no weights"):
        run(call, "blocked")
    weights = run(call, mechanism.backend).weights
    assert weights is not None
    assert (weights > 0).sum(-1).tolist() == [[[1, *[2] * 7]]]


def test_settings_are_checked() -> None:
    for wrong, said in (
        (TopKConfig(k=0), "k must be at least 1"),
        (TopKConfig(softness=-1.0), "zero or more, not -1.0"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong.check()
