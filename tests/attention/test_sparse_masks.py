"""The patterns' masks mean what their words say, and no summary of theirs is ever wrong."""

from __future__ import annotations

from itertools import chain

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from sparse_kit import CPU, KINDS, PATTERNS, agrees, slots_of

from regard import attention as a
from regard.attention.backends.flex import BLOCK, Flex
from regard.attention.call import allowed
from regard.attention.masks.patterns import Chunks, Columns, Scattered, Sinks
from regard.attention.slots import make_pairs
from regard.attention.tiling.regroup import parts
from regard.attention.tiling.tile import bounds, by_verdict, layout, make_tiles

small = st.integers(1, 20)
scattered = st.builds(Scattered.drawn, st.integers(1, 40), st.integers(0, 3), st.integers(0, 9))
columns = small.flatmap(lambda stride: st.builds(Columns, st.just(stride), st.integers(1, stride)))
sinks = st.builds(Sinks, st.integers(0, 9), st.booleans())
combed = st.one_of(st.builds(a.Strided, small), st.builds(a.Dilated, small, small, st.integers(0, 3)), columns)
leaves = st.one_of(sinks, st.builds(Chunks, small), combed, scattered, st.builds(a.Window, small), st.just(a.Causal()),
                   st.builds(a.Prefix, small), st.builds(a.Global, st.lists(small, max_size=2).map(tuple)))  # fmt: skip
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)
kinds = st.sampled_from([*KINDS, "later"])


def seen(mask: a.Mask, queries: a.AnySlots, keys: a.AnySlots) -> torch.Tensor:
    """[2, Q, K]: everything the mask allows."""
    pairs = make_pairs(queries, keys, heads=1, device=CPU, batch=2)
    return allowed(mask, pairs).expand(2, 1, queries.length, keys.length)[:, 0]


@given(st.one_of(sinks, st.builds(Chunks, small), columns), st.integers(1, 40), st.booleans())
def test_a_pattern_allows_what_its_words_say(mask: a.Mask, count: int, packed: bool) -> None:
    slots: a.AnySlots = a.Packed.of([[count, 3, 9]]) if packed else a.Range(count + 3, start=2)
    where = slots.at(torch.tensor([[0]]), torch.arange(slots.length)[None])
    spots = list(zip(where.order[0].tolist(), where.phase[0].tolist(), where.segment[0].tolist(), strict=True))
    want = [[q[2] == k[2] and agrees(mask, q[:2], k[:2]) for k in spots] for q in spots]
    assert seen(mask, slots, slots)[0].tolist() == want


@given(scattered, st.integers(1, 400))
def test_scattered_blocks_are_whole_earlier_few_and_repeatable(mask: Scattered, count: int) -> None:
    found = seen(mask, a.Range(count), a.Range(count))[0]
    size, blocks = mask.size, -(-count // mask.size)
    padded = torch.zeros(blocks * size, blocks * size, dtype=torch.bool)
    padded[:count, :count] = found
    for q in range(0, count, size):
        mine = padded[q : min(q + size, count), :count]
        targets = {int(k) // size for k in mine[0].nonzero()}
        assert len(targets) <= len(mask.mixers)
        assert all(target * size <= q for target in targets)
        assert (mine == torch.tensor([k // size in targets for k in range(count)])).all()


def test_scattered_blocks_are_spread() -> None:
    """Over many blocks the targets fall everywhere before them: a chi-square of 16 bins, 15 degrees of freedom."""
    (targets,) = Scattered.drawn(1, 1, seed=5)._targets(torch.arange(20_000))
    share = (targets.double() + 0.5) / torch.arange(1, 20_001)
    bins = torch.histc(share[100:], 16, 0, 1)
    expected = bins.sum() / 16
    assert ((bins - expected) ** 2 / expected).sum() < 45  # 99.99 % lie below


@given(expressions, kinds, kinds, st.sampled_from([9, 16, 50]))
def test_a_layout_is_never_wrong(mask: a.Mask, one: str, two: str, size: int) -> None:
    queries, keys = slots_of(one, 90), slots_of(two, 70)
    may, must = layout(mask, bounds(queries, CPU, size), bounds(keys, CPU, size))
    real = seen(mask, queries, keys)
    for i in range(-(-90 // size)):
        for j in range(-(-70 // size)):
            tile = real[:, i * size : (i + 1) * size, j * size : (j + 1) * size]
            assert (may.expand(2, *may.shape[1:])[:, 0, i, j] | ~tile.flatten(1).any(1)).all()
            assert (~must.expand(2, *may.shape[1:])[:, 0, i, j] | tile.flatten(1).all(1)).all()


@given(expressions, st.integers(1, 60))
def test_other_summaries_are_never_wrong(mask: a.Mask, count: int) -> None:
    real = seen(mask, a.Range(count), a.Range(count))[0]
    order = torch.arange(count)
    apart, key = (order[:, None] - order)[real], order.expand(count, count)[real]
    (back, ahead), (first, kept), (step, teeth) = mask.reach(), mask.retention(), mask.stride_pattern()
    assert back is None or (apart <= back).all()
    assert ahead is None or (-apart <= ahead).all()
    assert kept is None or ((key < first) | (apart <= kept)).all()
    assert (apart % step == 0).all() if teeth is None else torch.isin(key % step, torch.tensor(teeth)).all()
    if mask.relative:
        assert torch.equal(real[:-1, :-1], real[1:, 1:])


@given(expressions, st.integers(2, 150), st.sampled_from([1, 30]))
def test_parts_are_disjoint_and_whole(mask: a.Mask, count: int, narrow: int) -> None:
    slots = a.Range(count)
    total = sum(seen(part.mask, slots, slots)[0].int() for part in parts(mask, count, narrow))
    assert torch.equal(torch.as_tensor(total), seen(mask, slots, slots)[0].int())


@given(expressions, kinds, kinds)
def test_bands_hold_every_allowed_pair_once(mask: a.Mask, one: str, two: str) -> None:
    queries, keys = slots_of(one, 160), slots_of(two, 140)
    plan = a.Plan(mask, queries, keys, False)
    apart = parts(mask, 140, packed=isinstance(keys, a.Packed))
    unread = [by_verdict(part, plan, torch.device("cuda")) for part in apart]  # where slots may not be looked at
    for bands in (make_tiles(plan, CPU), unread):
        found = torch.zeros(2, 160, 140, dtype=torch.int)
        for band in chain.from_iterable(bands):
            column = torch.cat([torch.arange(c.start, c.stop, c.step) for c in band.columns])
            row = torch.arange(band.rows.start, band.rows.stop, band.rows.step)
            tile = (
                torch.ones(2, len(row), len(column)) if band.whole else band.allowed(plan, CPU)[:, 0].expand(2, -1, -1)
            )
            found[:, row[:, None], column] += tile.int()
        assert torch.equal(found, seen(mask, queries, keys).int())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_regrouped_blocks_for_a_gpu_hold_every_allowed_pair(
    pattern: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlexAttention's lists, with each pair brought back to where it was: none missing, none twice, none too many."""
    monkeypatch.setattr("regard.attention.backends.flex.WIDE", 300)
    length = 700 if pattern != "blocks" else 200
    slots, mask = slots_of(kind, length), PATTERNS[pattern]
    plan = a.Plan(mask, slots, slots, True)
    found = torch.zeros(2, length, length, dtype=torch.int)
    for group, blocks in Flex().prepare(plan, CPU):
        rows = 2 * group.step if group.split else 2
        q, k = (torch.arange(n) for n in blocks.seq_lengths)
        b = torch.arange(rows)[:, None, None]
        looked = blocks.mask_mod(b, torch.tensor(0), q[:, None], k).expand(rows, len(q), len(k))
        listed = [
            _dense(blocks.kv_num_blocks, blocks.kv_indices),
            _dense(blocks.full_kv_num_blocks, blocks.full_kv_indices),
        ]
        partial, full = (
            x.expand(rows, *x.shape[1:]).repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, : len(q), : len(k)]
            for x in listed
        )
        assert not (full & ~looked).any()
        done = (partial & looked) | full
        row, query, key = done.nonzero().T
        query, key = group._ungrouped(plan, row, query, key)
        found.index_put_(
            (row // group.step if group.split else row, query, key), torch.tensor(1).int(), accumulate=True
        )
    assert torch.equal(found, seen(mask, slots, slots).int())


def _dense(counts: torch.Tensor | None, indices: torch.Tensor | None) -> torch.Tensor:
    assert counts is not None
    assert indices is not None
    ranks = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros(indices.shape, dtype=torch.bool).scatter(-1, indices.long(), ranks)[:, 0]
