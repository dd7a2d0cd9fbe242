"""Measures in strips of any size equal those of the dense map, for everything the operator can do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import attention as a
from regard.attention.call import allowed, dense_pairs
from regard.look.capture.observe import Attention
from regard.look.statistics.maps import maxima
from regard.look.statistics.measures import row_measures

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))
import strategies as s

CLOSE = {"atol": 1e-4, "rtol": 0}


@st.composite
def mechanisms(draw: st.DrawFn, case: s.Case) -> a.Softmax:
    """Any score and any normalizer, with the case's bias and scale."""
    torch.manual_seed(case.seed)
    score = draw(
        st.sampled_from([a.Dot(), a.Dot(), a.General(case.width, case.width), a.Additive(case.width, case.width, 3)])
    )
    softmax = a.SoftmaxNormalizer(case.temperature)
    others = [a.TopKSoftmax(2, temperature=case.temperature), a.TopKSoftmax(3, 0.5), a.HardLookup(), a.Sigmoid(-1.0)]
    normalizer = draw(st.sampled_from([softmax, softmax, softmax, *others, a.Entmax()]))
    plain = case.mechanism("reference")
    return a.Softmax(score.to(case.dtype), plain.bias, scale=case.scale, normalizer=normalizer, backend="reference")


def looked_at(case: s.Case, mechanism: a.Softmax) -> tuple[Attention, torch.Tensor, torch.Tensor]:
    """The attention as a trace has it, with its dense weights and which pairs are allowed."""
    q, k, v = (x.detach() for x in case.tensors())
    plan = mechanism.plan(case.mask, case.queries, case.keys, like=q)
    out = a.run(mechanism.call(q, k, v, plan, weights=True), "reference")
    assert out.weights is not None
    pairs = dense_pairs(plan, q)
    seen = allowed(plan.mask, pairs).expand(out.weights.shape)
    return Attention("one", mechanism, q, k, plan, v), out.weights, seen


@given(st.data(), s.cases(), st.integers(1, 160), st.integers(1, 40), st.integers(1, 40))
def test_measures_in_strips_are_those_of_the_dense_map(data, case, size, rows, columns):
    attention, weights, seen = looked_at(case, data.draw(mechanisms(case)))
    measures = row_measures(attention, size)
    share = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)  # sigmoids do not sum to one
    torch.testing.assert_close(measures.entropy, torch.special.entr(share).sum(-1), **CLOSE)
    assert torch.equal(measures.seen.long(), seen.sum(-1))
    whole = slice(0, weights.shape[-2]), slice(0, weights.shape[-1])
    tiles = torch.stack([maxima(attention, head, whole, (rows, columns)) for head in range(attention.heads)], 1)
    pieces = [[part.amax((-2, -1)) for part in row.split(columns, -1)] for row in weights.split(rows, -2)]
    torch.testing.assert_close(tiles, torch.stack([torch.stack(row, -1) for row in pieces], -2), **CLOSE)
    pairs = dense_pairs(attention.plan, attention.q)
    same = (pairs.q.segment == pairs.k.segment) & (pairs.q.segment >= 0) & attention.plan.same_tokens
    for found, back in ((measures.previous, 1), (measures.own, 0)):
        wanted = (weights * (same & (pairs.k.order == pairs.q.order - back))).sum(-1)
        torch.testing.assert_close(found, wanted, **CLOSE)
    first = weights.gather(-1, seen.float().argmax(-1, keepdim=True))[..., 0] * seen.any(-1)
    torch.testing.assert_close(measures.first, first, **CLOSE)
    torch.testing.assert_close(measures.peak, weights.amax(-1), **CLOSE)


@pytest.mark.parametrize("mask", [a.Causal(), a.Causal() & a.Window(300), a.Full()])
def test_keys_out_of_sight_are_never_scored(mask):
    """Of a causal map half, of a window's a band: what is scored follows from the mask's structure."""
    from regard.look.capture.strips import strip_ranges

    mechanism, slots = a.Softmax(), a.Range(2048)
    q = torch.zeros(1, 1, 2048, 4)
    attention = Attention("one", mechanism, q, q, mechanism.plan(mask, slots, like=q))
    found = strip_ranges(attention)
    scored = sum((band.rows.stop - band.rows.start) * (band.columns.stop - band.columns.start) for band in found)
    assert scored <= {a.Causal(): 0.54, a.Full(): 1.0}.get(mask, 0.26) * 2048**2
    masked = sum(band.masked.stop - band.masked.start for band in found)
    assert masked <= (0 if mask == a.Full() else 2048 if mask == a.Causal() else 2048 * 4)
