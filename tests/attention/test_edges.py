"""Attention over a list of edges is attention with their table, forward and backward, for every score and bias."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from regard.attention import (
    AddedEdges,
    AddedTensor,
    Additive,
    Bias,
    Causal,
    Chain,
    EdgeList,
    Edges,
    Full,
    GraphScore,
    Mask,
    Packed,
    Padded,
    Range,
    Score,
    Slots,
    Softmax,
    TopKSoftmax,
    Window,
    explain,
)
from regard.attention.backends.choose import BackendRefused
from regard.attention.mechanisms.talking import Talking, TalkingScore
from regard.attention.score import Relative, SoftCap

B, H, N, D = 2, 3, 7, 4


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(seed: int, rows: int = B, count: int = 20) -> torch.Tensor:
    """Some edges with repetitions and padding."""
    return torch.randint(-1, N, (rows, count, 2), generator=torch.Generator().manual_seed(seed))


def table(edges: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(len(edges), N, N, dtype=torch.bool)
    for row, some in enumerate(edges.tolist()):
        for q, k in some:
            if min(q, k) >= 0:
                found[row, q, k] = True
    return found


SCORES: dict[str, Any] = {
    "dot": lambda: None,
    "additive": lambda: Additive(D, D, 5).double(),
    "gat": lambda: GraphScore(H, D).double(),
    "gat dynamic": lambda: GraphScore(H, D, dynamic=True).double(),
}
SCORES["talking"] = lambda: TalkingScore(H).double()
SLOTS = [Range(N), Padded(torch.tensor([5, 7]), N), Packed.of([[3, 4], [2, 2]], N)]


def outcome(score: Score | None, bias: Bias | None, mask: Mask, slots, added: Bias | None, backend: str):
    mechanism = Softmax(score, bias, temperature=0.7, backend=backend)
    q, k, v = (drawn(seed, B, heads, N, D).requires_grad_() for seed, heads in ((1, H), (2, H), (3, H)))
    plan = mechanism.plan(mask, slots, like=q, bias=added)
    values = mechanism(q, k, v, plan).values
    learned = [q, k, v, *mechanism.parameters(), *([] if added is None else added.learned())]
    found = torch.autograd.grad(values, learned, drawn(4, *values.shape), materialize_grads=True)
    return [values.detach(), *found]


@pytest.mark.parametrize("score", SCORES)
@given(seed=st.integers(0, 99), slots=st.sampled_from(SLOTS), rows=st.sampled_from([1, B]), both=st.booleans())
def test_a_list_of_edges_is_their_table(score: str, seed: int, slots, rows: int, both: bool) -> None:
    torch.manual_seed(seed)
    made, edges = SCORES[score](), pairs(seed, rows)
    for parameter in () if made is None else made.parameters():
        torch.nn.init.normal_(parameter)
    bias = Chain(SoftCap(2.0), Relative(H, 2).double()) if both else None
    listed, other = EdgeList.of(edges, N), Window(4, 2) if both else Full()
    values = drawn(5, len(listed.codes), H).requires_grad_()
    got = outcome(made, bias, listed & other, slots, AddedEdges(listed, values), "edges")
    row, q, k = listed.positions()
    dense = torch.zeros(rows, N, N, H, dtype=torch.float64)
    dense[row, q, k] = values.detach()
    dense = dense.permute(0, 3, 1, 2).contiguous().requires_grad_()
    want = outcome(made, bias, Edges(table(edges)) & other, slots, AddedTensor(dense), "reference")
    want[-1] = want[-1][row, :, q, k]
    for one, expected in zip(got, want, strict=True):
        torch.testing.assert_close(one, expected, atol=1e-10, rtol=1e-10)


def test_a_query_without_edges_is_zero_and_nothing_is_a_list_too() -> None:
    listed = EdgeList.of(torch.tensor([[[0, 1], [-1, 3]]]), N)
    values, *gradients = outcome(None, None, listed, Range(N), None, "edges")
    assert values[:, :, 1:].abs().max() == 0
    assert gradients[0][:, :, 1:].abs().max() == 0
    nothing = EdgeList.of(torch.zeros(1, 0, 2, dtype=torch.long), N)
    assert outcome(None, None, nothing, Range(N), None, "edges")[0].abs().max() == 0
    assert outcome(None, None, nothing, Range(N), AddedEdges(nothing, drawn(1, 0, H)), "reference")[0].abs().max() == 0


def test_it_is_chosen_where_it_can_run_and_says_why_not() -> None:
    mask, q = EdgeList.of(pairs(1), N), drawn(1, B, H, N, D)

    def reasons(mechanism: Softmax, mask: Mask, slots) -> str:
        call = mechanism.call(q, q, q, mechanism.plan(mask, slots, like=q))
        return "; ".join(explain(call).refusals["edges"])

    assert explain(Softmax().call(q, q, q, Softmax().plan(mask, Range(N), like=q))).chosen == "edges"
    assert "no list of edges" in reasons(Softmax(), Causal(), Range(N))
    assert "no list of edges" in reasons(Softmax(), mask | Causal(), Range(N))
    assert "by their order" in reasons(Softmax(), mask, Slots(*(torch.arange(N)[None],) * 3))
    assert "softmax only" in reasons(Talking(H).double(), mask, Range(N))
    assert "top-k" in reasons(Softmax(normalizer=TopKSoftmax(2)), mask, Range(N))
    with pytest.raises(BackendRefused, match="no list of edges"):
        Softmax(backend="edges").plan(Causal(), Range(N), like=q)


def test_graph_scores_are_those_of_the_papers() -> None:
    q, k = drawn(1, B, H, N, D), drawn(2, B, H, N, D)
    leaky = torch.nn.functional.leaky_relu
    for score in (GraphScore(H, D).double(), GraphScore(H, D, dynamic=True).double()):
        found, a = score(q, k), score.query[0, :, 0]
        for b, h, i, j in ((0, 0, 1, 2), (1, 2, 6, 0)):
            one, other = q[b, h, i], k[b, h, j]
            if score.key is None:
                want = a[h] @ leaky(one + other, 0.2)
            else:
                want = leaky(a[h] @ one + score.key[0, h, 0] @ other, 0.2)
            torch.testing.assert_close(found[b, h, i, j], want)
