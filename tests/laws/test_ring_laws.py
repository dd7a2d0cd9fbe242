"""Ring attention equals the reference for every mask, kind of slots and bias, however a row is cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import Phase, given, settings
from ring_kit import on_rank, on_threads, together
from ring_ranks import SMALLEST, parts
from strategies import Case, cases, examples, in_fair_shares, seeds
from test_backends import outcome
from torch import Tensor

from forked_ranks import run_ranks
from regard.attention.ring.transport import Transport
from regard.attention.slots import select
from regard.attention.tiling.tile import bounds, layout
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
@examples(1)
@given(cases(), st.sampled_from([(8, 3), (32, 8), (64, 16)]))
def test_block_by_block_on_one_rank(case: Case, sizes: tuple[int, int]) -> None:
    RAN.update(["cases", str(case.dtype).removeprefix("torch."), "biased" if case.bias else "plain"])
    block, smallest = sizes
    every = [torch.arange(slots.length) for slots in (case.queries, case.key_slots)]
    exactly(on_rank(case, Transport(), *every, block=block, smallest=smallest), outcome(case, "reference"))


@in_fair_shares(RAN, sent=0.6)
@examples(1)
@given(st.data())
def test_on_several_ranks(data: st.DataObject) -> None:
    case = data.draw(cases(HALVES))
    size = data.draw(st.sampled_from([2, 4]))
    queries = data.draw(cuts(case.queries.length, size))
    keys = queries if case.keys is None else data.draw(cuts(case.keys.length, size))
    got, ranks = on_threads(case, queries, keys, block=16, smallest=data.draw(st.sampled_from([1, 3, 8])))
    RAN.update(["cases", "sent" if any(rank.messages for rank in ranks) else "nothing sent"])
    exactly(got, outcome(case, "reference"))
    assert sum(rank.messages for rank in ranks) <= 3 * visible_pairs(case, queries, keys)


def visible_pairs(case: Case, queries: list[Tensor], keys: list[Tensor]) -> int:
    """The pairs of different ranks of which the mask's verdict is that the first may see a key of the second."""
    host, found = torch.device("cpu"), 0
    for i, of_queries in enumerate(queries):
        for j, of_keys in enumerate(keys):
            q, k = select(case.queries, of_queries), select(case.key_slots, of_keys)
            verdict = layout(case.mask, bounds(q, host, q.length), bounds(k, host, k.length))
            found += i != j and bool(verdict.may.any())
    return found


def drawn(count: int) -> list[tuple[Case, bool]]:
    """Generated cases, and whether they are cut in zigzag."""
    found: list[tuple[Case, bool]] = []

    @settings(max_examples=count, database=None, derandomize=True, phases=[Phase.generate])
    @given(cases(HALVES), st.booleans())
    def collect(case: Case, zigzag: bool) -> None:
        found.append((case, zigzag))

    collect()
    return found


@pytest.mark.parametrize(("size", "count"), [(2, 25), pytest.param(4, 400, marks=pytest.mark.slow)])
def test_on_processes(size: int, count: int, tmp_path: Path) -> None:
    """What travels between processes is what travels between threads."""
    made = drawn(count)
    torch.save(made, tmp_path / "cases")
    run_ranks(Path(__file__).with_name("ring_ranks.py"), size, tmp_path)
    results = [torch.load(tmp_path / f"results-{rank}", weights_only=False) for rank in range(size)]
    for number, (case, zigzag) in enumerate(made):
        queries, keys = parts(case, size, zigzag)
        found, counts = zip(*(result[number] for result in results), strict=True)
        exactly(together(list(found), queries, keys), outcome(case, "reference"))
        _, threads = on_threads(case, queries, keys, smallest=SMALLEST)
        assert list(counts) == [(rank.messages, rank.bytes) for rank in threads]
