"""Segments with a memory: the fast form against the definition, plain attention, and decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Causal, Packed, Padded, Range, Softmax
from regard.attention.mechanisms.segments import Segment, Segmented, SegmentsConfig
from regard.errors import UserError
from regard.models import GPTConfig

sizes = st.tuples(st.integers(1, 5), st.integers(0, 7), st.integers(0, 4), st.integers(1, 3))


def make(shape: tuple[int, int, int, int], detached: bool, seed: int) -> Segmented:
    made = Segmented(2, *shape, detached, 0.0).double()
    if made.shares is not None:
        made.shares.data = torch.randn(made.shares.shape, generator=torch.Generator().manual_seed(seed)).double()
    return made


def tensors(length: int, seed: int, rows: int = 2) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((rows, 4, length, 3), (rows, 2, length, 3), (rows, 2, length, 5))
    return [torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for shape in shapes]


def outcome(mechanism: Segmented, given: list[Tensor], mixed: Tensor) -> list[Tensor]:
    up = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(3), dtype=mixed.dtype)
    wanted = [*given, *mechanism.parameters()]
    found = torch.autograd.grad((mixed * up).sum(), wanted, allow_unused=True)
    return [mixed, *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True))]


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@given(sizes, st.booleans(), st.integers(1, 23), st.booleans(), st.integers(0, 99))
def test_side_by_side_is_the_definition(shape, detached: bool, length: int, padded: bool, seed: int) -> None:
    mechanism, (q, k, v) = make(shape, detached, seed), tensors(length, seed)
    slots = Padded(torch.tensor([length, length // 2]), length) if padded else Range(length)
    plan = mechanism.plan(Causal() & Segment(*shape[:2]), slots, like=q)
    assert plan.prepared is not None
    fast = outcome(mechanism, [q, k, v], mechanism(q, k, v, plan).values)
    assert_same(fast, outcome(mechanism, [q, k, v], mechanism(q, k, v, plan._replace(prepared=None)).values))


@given(sizes, st.integers(1, 23), st.integers(0, 99))
def test_without_summaries_it_is_a_mask(shape, length: int, seed: int) -> None:
    mechanism, (q, k, v) = make((shape[0], shape[1], 0, 1), False, seed), tensors(length, seed)
    mask = Causal() & Segment(*shape[:2])
    fast = mechanism(q, k, v, mechanism.plan(mask, Range(length), like=q)).values
    exact = Softmax(backend="reference")
    want = exact(q, k, v, exact.plan(mask, Range(length), like=q)).values
    assert_same(outcome(mechanism, [q, k, v], fast), outcome(mechanism, [q, k, v], want))


def test_gradients_stop_at_the_border() -> None:
    mechanism, (q, k, v) = make((4, 4, 2, 2), True, 0), tensors(16, 0, rows=1)
    mixed = mechanism(q, k, v, mechanism.plan(Causal() & Segment(4, 4), Range(16), like=q)).values
    for_k, for_v = torch.autograd.grad(mixed[:, :, 12:].square().sum(), (k, v))
    assert for_k[:, :, :12].abs().max() == 0
    assert for_v[:, :, :12].abs().max() == 0
    assert for_k[:, :, 12:].abs().min() > 0
    moved = v.detach().clone()
    moved[:, :, 5] += 1  # long summarised when token 12 comes
    again = mechanism(q, k, moved, mechanism.plan(Causal() & Segment(4, 4), Range(16), like=q)).values
    assert (again - mixed)[:, :, 12].abs().max() > 1e-3


def model(shape, seed: int):
    torch.manual_seed(seed)
    attention = SegmentsConfig(*shape, detached=bool(seed % 2))
    built = GPTConfig(
        vocabulary=7, context=64, layers=2, heads=2, kv_heads=1, width=8, attention=attention, zero_init=False
    ).build()
    return built.double().eval()


@given(sizes, st.integers(0, 99), st.lists(st.integers(1, 30), min_size=1, max_size=4), st.booleans())
def test_step_by_step_is_the_whole(shape, seed: int, cut: list[int], fixed: bool) -> None:
    gpt, length = model(shape, seed), min(64, sum(cut))
    text = torch.randint(7, (2, length))
    state, found, at = gpt.start(2, length, fixed=fixed), [], 0
    for count in cut:
        count = min(count, length - at)
        if count:
            logits, state = gpt.step(text[:, at : at + count], state)
            found.append(logits)
            at += count
    torch.testing.assert_close(torch.cat(found, 1), gpt(text), rtol=1e-9, atol=1e-9)


@given(sizes, st.integers(0, 99), st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_ragged_prompts_and_packed_documents(shape, seed: int, lengths: tuple[int, int]) -> None:
    gpt, longest = model(shape, seed), max(lengths)
    text = torch.randint(7, (2, longest + 3))
    state = gpt.start(2, longest + 3)
    _, state = gpt.step(text[:, :longest], state, torch.tensor(lengths))
    new = torch.randint(7, (2, 3))
    found = []
    for i in range(3):
        logits, state = gpt.step(new[:, i : i + 1], state)
        found.append(logits)
    got = torch.cat(found, 1)
    whole = [torch.cat((text[b, :n], new[b])) for b, n in enumerate(lengths)]
    for b in range(2):
        torch.testing.assert_close(got[b], gpt(whole[b][None])[0, -3:], rtol=1e-9, atol=1e-9)
    packed = Packed.of([[len(one) for one in whole]])
    together = gpt(torch.cat(whole)[None], packed)[0]
    torch.testing.assert_close(together, torch.cat([gpt(one[None])[0] for one in whole]), rtol=1e-9, atol=1e-9)


def test_what_it_refuses() -> None:
    with pytest.raises(UserError, match="need a causal model"):
        make((4, 4, 0, 1), True, 0).plan(Segment(4, 4), Range(8), like=torch.zeros(1))
    with pytest.raises(ValueError, match="rate must be at least 1"):
        SegmentsConfig(rate=0).check()
