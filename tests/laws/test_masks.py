"""Law 2: masks are a Boolean algebra on valid pairs, and their summaries may be loose but never wrong."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
import naive
import torch
from hypothesis import given
from strategies import examples, few, general, masks, most_orders, packed, padded, slots, usual_masks
from torch import Tensor

from regard.attention import (
    And,
    AnySlots,
    BlockBounds,
    Causal,
    Full,
    Mask,
    Packed,
    Padded,
    Pairs,
    Plan,
    Prefix,
    Range,
    Slots,
    TokenPosition,
    Window,
)
from regard.attention.backends.flex import BLOCK, Flex
from regard.attention.call import allowed
from regard.attention.slots import make_pairs, valid
from regard.attention.tiling.tile import bounds

CPU = torch.device("cpu")


class Table(NamedTuple):
    """Who meets whom: the slots of both sides, and three masks over their orders."""

    queries: AnySlots
    keys: AnySlots
    batch: int
    one: Mask
    two: Mask
    three: Mask

    def sees(self, mask: Mask) -> Tensor:
        """[B, Q, K]: what ``mask`` allows of these pairs."""
        pairs = make_pairs(self.queries, self.keys, heads=1, device=CPU, batch=self.batch)
        shape = (self.batch, 1, self.queries.length, self.keys.length)
        return allowed(mask, pairs).expand(shape)[:, 0]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    batch, asked, held = draw(st.integers(1, 3)), draw(few), draw(few)
    several = masks(batch, most_orders(max(asked, held)))
    made = [draw(several) for _ in range(3)]
    return Table(draw(slots(batch, asked)), draw(slots(batch, held)), batch, *made)


@examples(4)
@given(tables())
def test_a_mask_allows_what_its_words_say(table: Table) -> None:
    for mask in (table.one, ~(table.two & table.three)):
        assert torch.equal(table.sees(mask), naive.seen(mask, table.queries, table.keys, table.batch))


@examples(4)
@given(tables())
def test_masks_are_a_boolean_algebra(table: Table) -> None:
    a, b, c, everyone, nobody = table.one, table.two, table.three, Full(), ~Full()
    equal = {
        "commutative and": (a & b, b & a),
        "commutative or": (a | b, b | a),
        "associative and": (a & (b & c), (a & b) & c),
        "associative or": (a | (b | c), (a | b) | c),
        "and over or": (a & (b | c), (a & b) | (a & c)),
        "or over and": (a | (b & c), (a | b) & (a | c)),
        "De Morgan and": (~(a & b), ~a | ~b),
        "De Morgan or": (~(a | b), ~a & ~b),
        "double negation": (~~a, a),
        "absorption and": (a & (a | b), a),
        "absorption or": (a | (a & b), a),
        "idempotent and": (a & a, a),
        "idempotent or": (a | a, a),
        "identity and": (a & everyone, a),
        "identity or": (a | nobody, a),
        "domination and": (a & nobody, nobody),
        "domination or": (a | everyone, everyone),
        "complement and": (a & ~a, nobody),
        "complement or": (a | ~a, everyone),
    }
    for law, (left, right) in equal.items():
        assert torch.equal(table.sees(left), table.sees(right)), law


@examples(2)
@given(tables())
def test_not_never_revives_an_empty_slot(table: Table) -> None:
    pairs = make_pairs(table.queries, table.keys, heads=1, device=CPU, batch=table.batch)
    real = valid(pairs).expand(table.batch, 1, table.queries.length, table.keys.length)[:, 0]
    by_hand = naive.seen(Full(), table.queries, table.keys, table.batch)
    assert torch.equal(real, by_hand)
    assert torch.equal(table.sees(Full()), real)
    assert not table.sees(~Full()).any()
    for mask in (table.one, ~table.one, ~~table.one, ~(table.one & table.two)):
        assert not (table.sees(mask) & ~real).any()
    assert torch.equal(table.sees(table.one) ^ table.sees(~table.one), real)


# Summaries


def box(batch: int, queries: Tensor, keys: Tensor) -> Pairs:
    """All pairs of these orders, in every row."""
    b = torch.arange(batch)[:, None, None, None]
    q, k = queries[None, None, :, None], keys[None, None, None, :]
    return Pairs(b, torch.zeros(1, 1, 1, 1).long(), TokenPosition(q, q * 0, q), TokenPosition(k, k * 0, k))


def exact(mask: Mask) -> bool:
    """Masks whose verdict on a box of orders must be tight as well: speed rests on them."""
    if isinstance(mask, And):
        return isinstance(mask.left, Causal) and isinstance(mask.right, Window)
    return isinstance(mask, Full | Causal | Prefix | Window)


@st.composite
def tiles(draw: st.DrawFn) -> tuple[Mask, int, Tensor, Tensor, BlockBounds]:
    """A mask, and the orders of a block of queries and of a block of keys, of which a tile tells the extremes only."""
    orders, batch = draw(st.integers(1, 40)), draw(st.integers(1, 2))
    some = st.lists(st.integers(0, orders - 1), min_size=1, max_size=8, unique=True).map(torch.tensor)
    near = st.tuples(st.integers(0, orders - 1), st.integers(1, 6)).map(
        lambda place: torch.arange(place[0], min(orders, sum(place)))
    )
    queries, keys = draw(some | near), draw(some | near)
    low, high, first, last = (x.reshape(1, 1, 1) for side in (queries, keys) for x in (side.min(), side.max()))
    return draw(usual_masks() | masks(batch, orders)), batch, queries, keys, BlockBounds(low, high, first, last)


@examples(8)
@given(tiles())
def test_a_verdict_is_never_wrong(drawn: tuple[Mask, int, Tensor, Tensor, BlockBounds]) -> None:
    mask, batch, queries, keys, tile = drawn
    real = mask.allows(box(batch, queries, keys))
    may, must = (word.item() for word in mask.verdict(tile))
    assert may or not real.any(), "a tile with an allowed pair would be skipped"
    assert not must or real.all(), "a tile with a forbidden pair would be read without looking"
    whole = [torch.arange(int(low), int(high) + 1) for low, high in (tile[:2], tile[2:4])]
    if exact(mask):
        everything = mask.allows(box(batch, whole[0], whole[1]))
        assert may == bool(everything.any())
        assert must == bool(everything.all())


@examples(4)
@given(st.data(), st.integers(1, 30), st.integers(1, 2))
def test_a_reach_is_never_too_short(data: st.DataObject, orders: int, batch: int) -> None:
    mask = data.draw(usual_masks() | masks(batch, orders))
    every = torch.arange(orders)
    real = mask.allows(box(batch, every, every)).expand(batch, 1, orders, orders)
    apart = (every[:, None] - every).expand(real.shape)[real]
    back, ahead = mask.reach()
    assert back is None or not (apart > back).any()
    assert ahead is None or not (-apart > ahead).any()


# The block layout of FlexAttention


@st.composite
def long_slots(draw: st.DrawFn, batch: int) -> AnySlots:
    """Some blocks of slots, the last one seldom full; documents long enough to fill blocks of their own."""
    length = draw(st.sampled_from([1, 100, 128, 200, 256, 384, 390]))
    if draw(st.booleans()) and length > 1:
        cut = draw(st.integers(1, length - 1))
        return Packed.of([[cut, length - cut]] + [[length]] * (batch - 1))
    kinds = [st.builds(Range, st.just(length), st.integers(0, 300))]
    kinds += [kind(batch, length) for kind in (padded, packed, general)]
    return draw(st.one_of(kinds))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Mask, AnySlots, AnySlots, int]:
    batch = draw(st.integers(1, 2))
    queries, keys = draw(long_slots(batch)), draw(long_slots(batch))
    return draw(usual_masks() | masks(batch, 700)), queries, keys, batch


def listed(counts: Tensor, indices: Tensor) -> Tensor:
    """FlexAttention's lists of key blocks, back to booleans [B, query blocks, key blocks]."""
    ranks = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros(indices.shape, dtype=torch.bool).scatter(-1, indices.long(), ranks)[:, 0]


@examples(3)
@given(layouts())
def test_the_block_layout_covers_what_it_must(drawn: tuple[Mask, AnySlots, AnySlots, int]) -> None:
    mask, queries, keys, batch = drawn
    ((_, found),) = Flex().prepare(Plan(mask, queries, keys, False), CPU)
    partial = listed(found.kv_num_blocks, found.kv_indices)
    assert found.full_kv_num_blocks is not None
    assert found.full_kv_indices is not None
    full = listed(found.full_kv_num_blocks, found.full_kv_indices)
    rows, columns = -(-queries.length // BLOCK), -(-keys.length // BLOCK)
    assert partial.shape[1:] == full.shape[1:] == (rows, columns)
    assert not (partial & full).any()

    real = torch.zeros(batch, rows * BLOCK, columns * BLOCK, dtype=torch.bool)
    pairs = make_pairs(queries, keys, heads=1, device=CPU, batch=batch)
    real[:, : queries.length, : keys.length] = allowed(mask, pairs)[:, 0]
    tiled = real.view(batch, rows, BLOCK, columns, BLOCK).transpose(2, 3).flatten(3)
    some, every = tiled.any(-1), tiled.all(-1)
    assert not (some & ~(partial | full)).any(), "a block with an allowed pair is missing"
    assert not (full & ~every).any(), "a block with a forbidden pair, or past the end, would be read whole"
    if exact(mask) and isinstance(queries, Range) and isinstance(keys, Range):
        assert torch.equal((partial | full).expand(some.shape), some), "a block is read for nothing"
        assert torch.equal(full.expand(every.shape), every), "a whole block is looked at pair by pair"


@examples(2)
@given(st.data(), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9))
def test_bounds_are_the_extremes_of_each_block(data: st.DataObject, batch: int, length: int, size: int) -> None:
    held = data.draw(slots(batch, length))
    found = bounds(held, CPU, size)
    for b in range(held.rows):
        for i, start in enumerate(range(0, length, size)):
            block = [naive.spot(held, b, j) for j in range(start, min(length, start + size))]
            orders, segments = [s.order for s in block], [s.segment for s in block]
            row = min(b, found.low.shape[0] - 1)
            assert (found.low[row, 0, i], found.high[row, 0, i]) == (min(orders), max(orders))
            assert (found.first[row, 0, i], found.last[row, 0, i]) == (min(segments), max(segments))
            assert found.whole[i] == (len(block) == size)


def test_all_kinds_of_slots_are_drawn() -> None:
    """The strategy behind these laws leaves no kind out (a union that grows must grow there too)."""
    assert set(AnySlots.__args__) == {Range, Padded, Packed, Slots}
