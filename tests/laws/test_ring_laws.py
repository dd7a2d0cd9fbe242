"""Ring attention equals the reference for every mask, kind of slots and bias, however a row is cut."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import torch
from hypothesis import given
from ring_kit import on_rank, on_threads
from strategies import Case, cases, examples, in_fair_shares, seeds
from test_backends import outcome
from torch import Tensor

from regard.attention.ring.transport import Transport
from regard.parallel.context import positions

RAN: Counter[str] = Counter()
HALVES = st.integers(1, 5).map(lambda count: 8 * count)  # lengths that 4 ranks can share in zigzag


def exactly(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Equal up to rounding: 1e-12 in float64."""
    assert got.keys() == want.keys()
    for what, value in want.items():
        assert got[what].isfinite().all(), what
        limit = (1e-12 if value.dtype == torch.float64 else 2e-5) * max(1.0, value.abs().max().item())
        error = (got[what] - value).abs().max().item()
        assert error <= limit, f"{what}: off by {error:.2e}, allowed {limit:.2e}"


@st.composite
def cuts(draw: st.DrawFn, length: int, size: int) -> list[Tensor]:
    """The tokens of each rank: contiguous, zigzag, or any."""
    kind = draw(st.sampled_from(["contiguous", "zigzag", "any"]))
    if kind == "any":
        return list(torch.randperm(length, generator=torch.Generator().manual_seed(draw(seeds))).chunk(size))
    return [positions(length, rank, size, zigzag=kind == "zigzag") for rank in range(size)]


@in_fair_shares(RAN, float64=0.3, biased=0.1)
@examples(3)
@given(cases(), st.sampled_from([(4, 2), (16, 4), (64, 8)]))
def test_block_by_block_on_one_rank(case: Case, sizes: tuple[int, int]) -> None:
    RAN.update(["cases", str(case.dtype).removeprefix("torch."), "biased" if case.bias else "plain"])
    block, smallest = sizes
    every = [torch.arange(slots.length) for slots in (case.queries, case.key_slots)]
    exactly(on_rank(case, Transport(), *every, block=block, smallest=smallest), outcome(case, "reference"))


@in_fair_shares(RAN, sent=0.6)
@examples(3)
@given(st.data())
def test_on_several_ranks(data: st.DataObject) -> None:
    case = data.draw(cases(HALVES))
    size = data.draw(st.sampled_from([2, 4]))
    queries = data.draw(cuts(case.queries.length, size))
    keys = queries if case.keys is None else data.draw(cuts(case.keys.length, size))
    got, ranks = on_threads(case, queries, keys, block=16, smallest=data.draw(st.sampled_from([1, 3, 8])))
    RAN.update(["cases", "sent" if any(rank.messages for rank in ranks) else "nothing sent"])
    exactly(got, outcome(case, "reference"))
