"""The operator's edges: what it is given wrongly, scores, biases, dropout, and FlexAttention's own tracing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard.attention import (
    Additive,
    Alibi,
    CacheIndex,
    Causal,
    Chain,
    Dilated,
    Edges,
    Full,
    General,
    Global,
    Mask,
    Mechanism,
    Packed,
    Padded,
    Prefix,
    Range,
    Relative,
    Same,
    SoftCap,
    Softmax,
    Strided,
    Window,
    attend,
)
from regard.attention.backends.flex import Flex
from regard.attention.score import alibi_slopes


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# What is wrong is said


def test_axes_must_match() -> None:
    with pytest.raises(ValueError, match="same number of axes, 2 to 4: 3, 2 and 2 were given"):
        attend(normal(1, 2, 3), normal(2, 3), normal(2, 3))
    with pytest.raises(ValueError, match="5, 5 and 5 were given"):
        attend(x := normal(1, 1, 1, 2, 3), x, x)


@pytest.mark.parametrize(
    ("q", "k", "v", "problem"),
    [
        ((2, 3, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), "3 query heads cannot share 2 key/value heads evenly"),
        ((2, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4), r"q \(2, 2, 5, 4\), k \(1, 2, 5, 4\).* do not match"),
        ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 6, 4), "do not match"),
        ((2, 2, 5, 4), (2, 2, 5, 3), (2, 2, 5, 4), "q has width 4 and k 3; dot products need the same"),
    ],
)
def test_shapes_that_do_not_fit(q, k, v, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        attend(normal(*q), normal(*k), normal(*v))


def test_a_plan_for_other_lengths() -> None:
    x = normal(1, 1, 5, 4)
    mechanism = Softmax()
    plan = mechanism.plan(Causal(), Range(4), like=x)
    with pytest.raises(ValueError, match="the plan is for 4 queries and 4 keys; the tensors hold 5 and 5"):
        mechanism(x, x, x, plan)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Window(0), "a window holds at least its own token"),
        (lambda: Window(2, ahead=-1), "size >= 1 and ahead >= 0"),
        (lambda: Dilated(1, 0), "step >= 1"),
        (lambda: Strided(0), "a stride is at least 1, not 0"),
        (lambda: Softmax(temperature=-1.0), "a temperature is zero or more, not -1.0"),
        (lambda: Packed.of([[2, 0]]), "at least one token"),
        (lambda: Packed.of([[2, 3]], length=4), "documents of 5 tokens do not fit a row of 4"),
    ],
)
def test_impossible_values(make, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


def test_a_base_mechanism_does_nothing_by_itself() -> None:
    with pytest.raises(NotImplementedError):
        Mechanism()(None, None, None, None)
    with pytest.raises(NotImplementedError):
        Mask().allows(None)  # pyright: ignore[reportArgumentType]
    assert Softmax.steppable
    assert Softmax.batch_invariant


# Axes, scores, biases


def test_leading_axes_come_back_as_they_went_in() -> None:
    for lead in ((), (3,), (2, 3)):
        out = attend(normal(*lead, 5, 4), normal(*lead, 6, 4), normal(*lead, 6, 2), weights=True)
        assert out.values.shape == (*lead, 5, 2)
        assert out.weights is not None
        assert out.weights.shape == (*lead, 5, 6)


def test_additive_scores_are_bahdanaus() -> None:
    """vᵀ tanh(W q + U k), between different widths, unscaled."""
    score: Any = Additive(query_width=3, key_width=5, hidden=4)
    q, k, v = normal(2, 3), normal(6, 5), normal(6, 2)
    found = attend(q, k, v, mechanism=Softmax(score), weights=True)
    for i in range(2):
        raw = [score.out.weight[0] @ torch.tanh(score.query.weight @ q[i] + score.key.weight @ k[j]) for j in range(6)]
        shares = torch.stack(raw).softmax(0)
        torch.testing.assert_close(found.weights[i], shares)  # pyright: ignore[reportOptionalSubscript]
        torch.testing.assert_close(found.values[i], shares @ v)
    found.values.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in score.parameters())


def test_general_scores_are_luongs() -> None:
    score = General(query_width=3, key_width=5)
    q, k, v = normal(2, 3), normal(6, 5), normal(6, 2)
    found = attend(q, k, v, mechanism=Softmax(score), weights=True)
    torch.testing.assert_close(found.weights, (q @ score.weight @ k.T).softmax(-1))
    found.values.sum().backward()
    assert score.weight.grad is not None


def test_alibi_slopes_are_the_papers() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    sixteen = [2 ** (-i / 2) for i in range(1, 17)]
    assert all(map(math.isclose, alibi_slopes(12), alibi_slopes(8) + sixteen[0::2][:4]))
    assert all(map(math.isclose, alibi_slopes(16), sixteen))


def test_a_chain_is_additive_if_its_parts_are() -> None:
    assert Chain(Alibi(2), Relative(2, 3)).additive
    assert not Chain(Alibi(2), SoftCap(3.0)).additive
    scores = normal(1, 2, 3, 3)
    assert (SoftCap(0.5).adjust(100 * scores, None).abs() <= 0.5).all()  # pyright: ignore[reportArgumentType]


def test_biases_see_phases_not_orders() -> None:
    """Two packed copies of one document get the same distances: phases restart with each."""
    bias = Relative(1, 10)
    torch.nn.init.normal_(bias.table)
    x = normal(1, 1, 4, 2).repeat(1, 1, 2, 1)
    out = attend(x, x, x, Full(), queries=(p := Packed.of([[4, 4]])), keys=p, mechanism=Softmax(bias=bias)).values
    torch.testing.assert_close(out[:, :, :4], out[:, :, 4:])


def test_dropout_acts_in_training_only_and_keeps_the_mean() -> None:
    x, ones = normal(1, 1, 64, 4), torch.ones(1, 1, 64, 200)
    for backend in ("reference", "sdpa", "banded"):
        mechanism = Softmax(dropout=0.5, backend=backend)
        plan = mechanism.plan(Full(), Range(64), like=x)
        trained = mechanism(x, x, ones, plan).values
        torch.testing.assert_close(trained.mean().item(), 1.0, atol=0.1, rtol=0)
        assert (trained - 1).abs().max() > 0.05
        torch.testing.assert_close(mechanism.eval()(x, x, ones, plan).values, ones)


# FlexAttention


@pytest.mark.parametrize(
    "mask",
    [
        Causal() & Window(3),
        (Causal() | Prefix(2)) & ~Strided(3),
        Global((0, 4)) | Dilated(2, 2) | Same(torch.arange(40) % 3) | Edges(torch.eye(40, dtype=torch.bool)),
    ],
    ids=["local", "nested", "tensors"],
)
def test_flex_traces_masks_and_biases(mask: Mask) -> None:
    """With tracing as it happens on a GPU (the laws run FlexAttention's arithmetic untraced, for speed)."""
    q, k, v = normal(2, 4, 20, 8), normal(2, 2, 20, 8), normal(2, 2, 20, 4)
    for bias in (None, Chain(Alibi(4), SoftCap(3.0))):
        for slots in (Range(20), Padded(torch.tensor([20, 3]), 20)):
            flex, reference = (
                Softmax(bias=bias, backend=Flex(interpreted=True)),
                Softmax(bias=bias, backend="reference"),
            )
            with torch.no_grad():
                got, want = (m(q, k, v, m.plan(mask, slots, like=q)).values for m in (flex, reference))
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


# Memory


def test_a_memory_rolls_and_reports_what_it_holds() -> None:
    memory = CacheIndex.start(1, 100, Causal() & Window(3), torch.device("cpu"))
    assert memory.size == 18  # what the window reaches back to, and room for one step of 16 tokens
    assert CacheIndex.start(1, 10, Causal() & Window(3), torch.device("cpu")).size == 10
    assert CacheIndex.start(1, 100, Causal(), torch.device("cpu")).size == 100
    assert not (memory.slots(18).segment >= 0).any()
    memory.allocate(torch.tensor([0]), 20, torch.tensor([20]), first=True)
    assert sorted(memory.order[0].tolist()) == list(range(2, 20))
    memory.allocate(torch.tensor([20]), 3, torch.tensor([2]), first=False)
    assert sorted(memory.order[0].tolist()) == list(range(4, 22))
    assert (memory.order[0] % 18 == torch.arange(18)).all()
