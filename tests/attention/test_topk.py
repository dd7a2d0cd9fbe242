"""Top-k: the hard cut, and the smooth gate that tends to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.attention import Causal, Softmax, TopKSoftmax, attend

SOFTNESS = [1.0, 0.1, 0.01, 1e-3, 1e-5]


def scores(*shape: int, seed: int = 0) -> Tensor:
    """Distinct scores, no two of a row nearer than 0.01: a limit needs a gap."""
    g = torch.Generator().manual_seed(seed)
    ranks = torch.rand(*shape, generator=g).argsort(-1).double()
    return 0.3 * (ranks - ranks.mean(-1, keepdim=True)) + 0.2 * torch.rand(*shape, generator=g).double()


def everything(x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.bool)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("softness", SOFTNESS)
def test_gates_sum_to_k(k: int, softness: float) -> None:
    x = scores(50, 8)
    opened = TopKSoftmax(k, softness).gate(x, everything(x)).sigmoid()
    torch.testing.assert_close(opened.sum(-1), torch.full((50,), float(k)).double(), atol=1e-6, rtol=0)
    better = x[:, :, None] > x[:, None, :]
    assert not (better & (opened[:, :, None] < opened[:, None, :])).any(), "a better key has the narrower gate"


def test_gates_of_masked_rows_sum_to_k_over_what_is_seen() -> None:
    x = scores(40, 9)
    seen = torch.rand(40, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    enough = seen.sum(-1) > 3
    opened = TopKSoftmax(3, 0.2).gate(x.masked_fill(~seen, torch.finfo(x.dtype).min), seen).sigmoid() * seen
    torch.testing.assert_close(opened.sum(-1)[enough], torch.full((int(enough.sum()),), 3.0).double())


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_soft_cut_tends_to_the_hard_one(k: int) -> None:
    x = scores(50, 8)
    hard = TopKSoftmax(k).normalize(x, everything(x))
    apart = [(TopKSoftmax(k, s).normalize(x, everything(x)) - hard).abs().max().item() for s in SOFTNESS]
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 1e-9


@pytest.mark.parametrize(("k", "keys"), [(3, 3), (5, 3), (1, 1), (8, 1)])
def test_the_soft_cut_of_a_row_with_no_more_than_k_keys_tends_to_no_cut(k: int, keys: int) -> None:
    """The first rows under a causal mask see fewer keys than k: nothing is to be cut there."""
    x = scores(20, keys)
    hard = TopKSoftmax(k).normalize(x, everything(x))
    torch.testing.assert_close(hard, x.softmax(-1))
    soft = TopKSoftmax(k, 1e-4).normalize(x, everything(x))
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)


def test_the_soft_cut_under_a_causal_mask_tends_to_the_hard_one() -> None:
    q, k, v = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hard = attend(q, k, v, Causal(), mechanism=Softmax(normalizer=TopKSoftmax(3))).values
    soft = attend(q, k, v, Causal(), mechanism=Softmax(normalizer=TopKSoftmax(3, softness=1e-5))).values
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=0)


@pytest.mark.parametrize("softness", [1.0, 0.3])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_soft_cuts_gradient_is_its_finite_difference(k: int, softness: float, temperature: float) -> None:
    """Every score has one, those of keys far below the threshold too."""
    x = scores(3, 6).requires_grad_()
    seen = everything(x)
    seen[1, 2] = seen[2, :4] = False
    assert torch.autograd.gradcheck(lambda s: TopKSoftmax(k, softness, temperature).normalize(s, seen), x)
    TopKSoftmax(k, softness, temperature).normalize(x, seen).square().sum().backward()
    assert x.grad is not None
    assert (x.grad[0] != 0).all()
    assert not x.grad[~seen].any()


def test_the_soft_cuts_gradient_through_the_operator() -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 4, 3, dtype=torch.float64).unbind())
    mechanism = Softmax(normalizer=TopKSoftmax(2, softness=0.5))
    assert torch.autograd.gradcheck(lambda *x: attend(*x, mechanism=mechanism).values, (q, k, v))


def test_the_hard_cuts_gradient_reaches_the_kept_keys_only() -> None:
    x = scores(5, 8).requires_grad_()
    kept = TopKSoftmax(3).normalize(x, everything(x))
    assert (kept > 0).sum(-1).tolist() == [3] * 5
    kept.square().sum().backward()
    assert x.grad is not None
    assert not x.grad[kept == 0].any()
    assert torch.autograd.gradcheck(lambda s: TopKSoftmax(3).normalize(s, everything(s)), x)


def test_of_equal_scores_the_earliest_keys_stay() -> None:
    x = torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0]])
    assert (TopKSoftmax(3).normalize(x, everything(x)) > 0).tolist() == [[True, True, False, False, True]]


@pytest.mark.parametrize("softness", [0.0, *SOFTNESS])
def test_nothing_overflows_in_float32(softness: float) -> None:
    x = (100 * scores(6, 8)).float().requires_grad_()
    seen = everything(x)
    seen[0], seen[1, 1:] = False, False
    weights = TopKSoftmax(2, softness).normalize(x, seen)
    (gradient,) = torch.autograd.grad(weights.square().sum(), x)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()
    assert not weights[~seen].any()
    torch.testing.assert_close(weights.sum(-1), seen.any(-1).float())
