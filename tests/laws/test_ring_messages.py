"""What ring attention sends: counted by the transport, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from ring_kit import on_threads
from strategies import Case
from torch import Tensor

from regard.attention import Causal, Full, Mask, Packed, Range, Softmax, Window
from regard.attention.backends.ring import Ring
from regard.attention.masks.expression import parse
from regard.attention.ring.route import RingRoute
from regard.attention.ring.transport import Transport
from regard.attention.slots import AnySlots, select
from regard.attention.tiling.quarters import HOST, TileSizes, quartered
from regard.attention.tiling.tile import Tile
from regard.parallel.context import positions

LENGTH, SIZE, SHARE = 64, 4, 16  # tokens of a row, ranks, tokens of a rank
TOKEN = 2 * (3 + 3) * 8  # bytes of a key and a value of width 3, of two heads, in float64


def case(mask: Mask, slots: AnySlots | None = None) -> Case:
    slots = Range(LENGTH) if slots is None else slots
    return Case(1, 2, 2, 3, 3, mask, slots, None, None, None, 1.0, torch.float64, seed=1)


def sent(mask: Mask, slots: AnySlots | None = None, *, zigzag: bool = False) -> list[tuple[int, float]]:
    """For each rank the messages and the keys with their values that it sends, forward and backward."""
    parts = [positions(LENGTH, rank, SIZE, zigzag=zigzag) for rank in range(SIZE)]
    _, ranks = on_threads(case(mask, slots), parts, parts, smallest=1)
    return [(rank.messages, rank.bytes / TOKEN) for rank in ranks]


# Each pair of ranks with a visible key: the keys forward, the same once more backward, and their gradients home.


def test_without_a_mask_every_rank_sends_its_tokens_to_every_other_one() -> None:
    assert sent(Full()) == [(3 * 3, 3 * 3 * SHARE)] * SIZE


def test_a_causal_mask_needs_the_keys_of_earlier_ranks_only() -> None:
    """Rank r sends its keys twice to the 3 - r later ranks, and gradients to the r earlier ones."""
    assert sent(Causal()) == [(2 * (3 - r) + r, (2 * (3 - r) + r) * SHARE) for r in range(SIZE)]


def test_in_zigzag_later_ranks_get_the_early_half_of_the_keys() -> None:
    """Piece r is before both pieces of a later rank and before the second one of an earlier rank, piece 7 - r only
    before the latter: half of the keys travel to later ranks, and all to earlier ones."""
    keys = [(3 - r) * SHARE / 2 + r * SHARE for r in range(SIZE)]
    gradients = [r * SHARE / 2 + (3 - r) * SHARE for r in range(SIZE)]
    assert sent(Causal(), zigzag=True) == [(9, 2 * k + g) for k, g in zip(keys, gradients, strict=True)]


def test_of_a_window_only_the_last_keys_of_the_rank_before_travel() -> None:
    """A window of 5 reaches 4 keys back: rank r sends 4 to rank r + 1 twice, and 4 gradients to rank r - 1."""
    assert sent(Causal() & Window(5)) == [(2, 8), (3, 12), (3, 12), (1, 4)]


def test_of_packed_documents_only_those_that_go_on_travel() -> None:
    """Documents of 16, 20, 12 and 16 tokens: of the second one 16 are on rank 1 and 4 on rank 2."""
    assert sent(Causal(), Packed.of([[16, 20, 12, 16]])) == [(0, 0), (2, 32), (1, 16), (0, 0)]
    assert sent(Causal(), Packed.of([[16, 16, 16, 16]])) == [(0, 0)] * SIZE


def test_what_nobody_sees_stays_and_rows_that_see_nothing_are_zero() -> None:
    parts = [positions(LENGTH, rank, SIZE) for rank in range(SIZE)]
    found, ranks = on_threads(case(~Full()), parts, parts)
    assert all(rank.messages == 0 for rank in ranks)
    assert all(not value.any() for value in found.values())


class Planning(Transport):
    """A rank that knows which tokens the others have, and sends nothing."""

    def __init__(self, rank: int, shards: list[Tensor]):
        super().__init__()
        self.rank, self.size, self.shards = rank, len(shards), shards

    def gather(self, x: Tensor) -> list[Tensor]:
        return [torch.stack([shard, 0 * shard, shard], dim=-1)[None] for shard in self.shards]


def pairs(mask: Mask, zigzag: bool) -> list[int]:
    """The scores of each rank, in tiles of one token."""
    shards = [positions(LENGTH, rank, SIZE, zigzag=zigzag) for rank in range(SIZE)]
    planned = []
    for rank, shard in enumerate(shards):
        mechanism = Softmax(backend=Ring(Planning(rank, shards), smallest=1))
        route = mechanism.plan(mask, select(Range(LENGTH), shard), like=torch.empty(1, 1, SHARE, 4)).prepared
        assert isinstance(route, RingRoute)
        visits = [step.visit for step in route.steps if step.visit is not None]
        planned.append(sum(tile.elements for visit in visits for tile in visit.tiles(fused=False)))
    return planned


def test_in_zigzag_every_rank_has_as_many_scores() -> None:
    assert pairs(Causal(), zigzag=True) == [LENGTH * (LENGTH + 1) // 2 // SIZE] * SIZE
    contiguous = pairs(Causal(), zigzag=False)
    assert sum(contiguous) == LENGTH * (LENGTH + 1) // 2
    assert contiguous[-1] > 5 * contiguous[0]


@pytest.mark.parametrize("text", ["causal", "causal & window(9)", "chunks(12)", "causal & strided(3)", "full"])
@pytest.mark.parametrize("triangles", [False, True])
def test_tiles_cover_what_is_visible_once(text: str, triangles: bool) -> None:
    mask, slots = parse(text), Packed.of([[20, 44]])
    call = Softmax(backend="reference")
    plan = call.plan(mask, slots, like=torch.empty(1, 1, LENGTH, 4))
    seen = torch.zeros(LENGTH, LENGTH, dtype=torch.int64)
    for tile in quartered(plan, TileSizes(16, 4), causal=triangles):
        assert tile.elements <= 16 * 16
        shape = [len(range(*piece.indices(LENGTH))) for piece in (tile.rows, *tile.columns)]
        visible = tile._replace(visible=None).allowed(plan, HOST)[0, 0]
        kept = torch.ones(shape).tril() if tile.causal else torch.ones(shape) if tile.whole else visible
        assert torch.equal(kept.bool(), visible)
        seen[tile.rows, tile.columns[0]] += visible
    every = slice(0, LENGTH, 1)
    assert torch.equal(seen, Tile(mask, every, (every,)).allowed(plan, HOST)[0, 0].long())
