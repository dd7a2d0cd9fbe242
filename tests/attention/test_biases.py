"""Biases of positions: each is its formula, sees differences of phases only, and is what other libraries have."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from regard.attention import (
    Alibi,
    AnySlots,
    Bias,
    Causal,
    Full,
    Packed,
    Padded,
    Range,
    Relative,
    Slots,
    Softmax,
    attend,
)
from regard.attention.backends.flex import Flex
from regard.attention.score import GridRelative, RelativeBuckets, alibi_slopes, t5_bucket
from regard.attention.slots import make_pairs

CPU = torch.device("cpu")
seeds = st.integers(0, 2**32 - 1)
heads_ = st.integers(1, 12)


def filled(bias: Bias, seed: int) -> Bias:
    """The same with random numbers in its table, in float64."""
    g = torch.Generator().manual_seed(seed)
    for parameter in bias.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
    return bias


def added(bias: Bias, queries: AnySlots, keys: AnySlots, heads: int) -> Tensor:
    """What it adds to each score, [B, H, Q, K]."""
    rows = max(queries.rows, keys.rows)
    pairs = make_pairs(queries, keys, heads=heads, device=CPU, batch=rows)
    return bias.adjust(torch.zeros(rows, heads, queries.length, keys.length, dtype=torch.float64), pairs)


def slots(phases: list[int]) -> Slots:
    phase = torch.tensor([phases])
    return Slots(torch.arange(len(phases))[None], torch.zeros_like(phase), phase)


@st.composite
def kinds(draw: st.DrawFn) -> tuple[Bias, int]:
    """One that looks at distances, with its number of heads."""
    heads, seed = draw(heads_), draw(seeds)
    near = draw(st.integers(1, 9))
    some = [
        Alibi(heads),
        Relative(heads, near, draw(st.sampled_from([1.0, 0.25]))),
        RelativeBuckets(heads, 2 * draw(st.integers(2, 8)), 17 + near, causal=draw(st.booleans())),
    ]
    return filled(draw(st.sampled_from(some)), seed), heads


@given(kinds(), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 1000))
def test_only_differences_of_phases_count(kind: tuple[Bias, int], phases: list[int], shift: int) -> None:
    bias, heads = kind
    here = added(bias, slots(phases), slots(phases), heads)
    moved = slots([phase + shift for phase in phases])
    assert torch.equal(added(bias, moved, moved, heads), here)
    others = added(bias, slots(phases), moved, heads)
    assert others.shape == here.shape


@given(
    heads_, st.lists(st.integers(0, 500), min_size=1, max_size=5), st.lists(st.integers(0, 500), min_size=1, max_size=5)
)
def test_alibi_is_a_slope_times_the_distance(heads: int, queries: list[int], keys: list[int]) -> None:
    """Press et al. 2022, sec. 3: the slopes begin at 2^(-8/n) and go on by that factor, for n a power of two."""
    got = added(Alibi(heads), slots(queries), slots(keys), heads)
    power = 2 ** int(math.log2(heads))
    whole = [(2 ** (-8 / power)) ** (i + 1) for i in range(power)]
    finer = [(2 ** (-8 / (2 * power))) ** (i + 1) for i in range(2 * power)]
    slopes = (whole + finer[::2])[:heads]
    for h, slope in enumerate(slopes):
        for i, q in enumerate(queries):
            for j, k in enumerate(keys):
                assert got[0, h, i, j].item() == pytest.approx(-slope * abs(q - k), rel=1e-6)


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(2, 12), st.booleans())
def test_the_learned_number_stands_inside_the_scale(
    seed: int, heads: int, distance: int, width: int, length: int, causal: bool
) -> None:
    """softmax((q·k + r_ij)/√d) v, pair by pair, with gradients of q, k, v and r; by the reference and by bands."""
    g = torch.Generator().manual_seed(seed)
    q, k, v, upstream = (torch.randn(1, heads, length, width, generator=g, dtype=torch.float64) for _ in range(4))
    bias: Any = filled(Relative(heads, distance, width**-0.5), seed)
    sources = [x.requires_grad_() for x in (q, k, v)] + [bias.table]
    place = torch.arange(length)
    apart = (place[:, None] - place).clamp(-distance, distance) + distance
    scores = (q @ k.mT + bias.table[:, apart]) / math.sqrt(width)
    if causal:
        scores = scores.masked_fill(place > place[:, None], -torch.inf)
    want = scores.softmax(-1) @ v
    slopes = torch.autograd.grad(want, sources, upstream)
    for backend in ("reference", "banded", "auto"):
        mechanism = Softmax(bias=bias, backend=backend)
        got = attend(q, k, v, Causal() if causal else Full(), mechanism=mechanism).values
        torch.testing.assert_close(got, want)
        for found, expected in zip(torch.autograd.grad(got, sources, upstream), slopes, strict=True):
            torch.testing.assert_close(found, expected)


@given(
    seeds,
    st.sampled_from(["range", "padded", "packed", "unknown"]),
    st.integers(2, 70),
    st.sampled_from([Causal(), Full()]),
)
def test_buckets_are_the_same_by_bands_and_by_the_reference(seed: int, how: str, length: int, mask) -> None:
    g = torch.Generator().manual_seed(seed)
    some = int(torch.randint(1, length, (), generator=g))
    queries: dict[str, AnySlots] = {
        "range": Range(length, 3),
        "padded": Padded(torch.tensor([some, length]), length),
        "packed": Packed.of([[some, length - some], [some]], length),
    }
    queries["unknown"] = queries["packed"]._replace(documents=None)  # pyright: ignore
    bias: Any = filled(RelativeBuckets(4, 8, 20, causal=isinstance(mask, Causal)), seed)
    q = torch.randn(2, 4, length, 8, generator=g, dtype=torch.float64).requires_grad_()
    k, v = (torch.randn(2, 2, length, 8, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    found = {}
    for backend in ("reference", "banded"):
        out = attend(q, k, v, mask, queries=queries[how], mechanism=Softmax(bias=bias, backend=backend)).values
        found[backend] = [out, *torch.autograd.grad(out.square().sum(), [q, k, v, bias.table])]
    for got, want in zip(found["banded"], found["reference"], strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (16, 64), (8, 128), (4, 20), (32, 1000)])
def test_t5_buckets_are_those_of_transformers(buckets: int, furthest: int, causal: bool) -> None:
    pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    apart = torch.arange(-2000, 2001)
    want = T5Attention._relative_position_bucket(-apart, not causal, buckets, furthest)
    assert torch.equal(t5_bucket(apart, buckets, furthest, causal=causal), want)


@pytest.mark.parametrize("causal", [True, False])
def test_the_t5_bias_is_that_of_transformers(causal: bool) -> None:
    pytest.importorskip("transformers")
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=12, d_kv=4, num_heads=3, is_decoder=causal, relative_attention_max_distance=40)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    ours = RelativeBuckets(3, 32, 40, causal=causal)
    ours.table.data = theirs.relative_attention_bias.weight.data.T.clone()
    got = added(ours, Range(9, start=61), Range(70), 3)
    torch.testing.assert_close(got.float(), theirs.compute_bias(9, 70, past_seen_tokens=61))


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_is_that_of_bloom(heads: int) -> None:
    """BLOOM leaves out what the softmax does not see: a constant per query."""
    pytest.importorskip("transformers")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 40), heads, torch.float32)  # [H, 1, K]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs[:, 0, 1])
    ours = added(Alibi(heads), Range(1, start=39), Range(40), heads)[0].float()
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1))


def grid(rows: int, columns: int, down: int = 0, across: int = 0) -> Slots:
    place = torch.cartesian_prod(torch.arange(rows) + down, torch.arange(columns) + across)
    order = torch.arange(rows * columns)[None]
    return Slots(order, torch.zeros_like(order), place[None])


def test_the_bias_of_a_grid_is_that_of_swin() -> None:
    swin = pytest.importorskip("transformers.models.swin.modeling_swin")
    theirs: Any = swin.SwinRelativePositionBias(5, (3, 4))
    torch.nn.init.normal_(theirs.relative_position_bias_table)
    ours = GridRelative(5, 3, 4)
    ours.table.data = theirs.relative_position_bias_table.data.T.reshape(5, 5, 7).clone()
    torch.testing.assert_close(added(ours, grid(3, 4), grid(3, 4), 5).float(), theirs())


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(0, 30), st.integers(0, 30))
def test_the_bias_of_a_grid_sees_rows_and_columns_apart(
    seed: int, rows: int, columns: int, down: int, across: int
) -> None:
    bias: Any = filled(GridRelative(2, rows, columns), seed)
    here = added(bias, grid(rows, columns), grid(rows, columns), 2)
    for moved in (grid(rows, columns, down), grid(rows, columns, 0, across)):
        assert torch.equal(added(bias, moved, moved, 2), here)
    for i, (y, x) in enumerate(grid(rows, columns).phase[0].tolist()):
        for j, (v, u) in enumerate(grid(rows, columns).phase[0].tolist()):
            assert torch.equal(here[0, :, i, j], bias.table[:, y - v + rows - 1, x - u + columns - 1])


@pytest.mark.parametrize("bias", [Alibi(2), Relative(2, 3), RelativeBuckets(2, 4, 9), GridRelative(2, 2, 3)], ids=str)
def test_a_kernel_reads_the_same_bias(bias: Bias) -> None:
    """FlexAttention, interpreted: each pair by itself, its fields scalars."""
    bias = filled(bias, 3).float()
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, 12, 16, generator=g) for _ in range(3))
    queries = grid(3, 4) if isinstance(bias, GridRelative) else Packed.of([[5, 7], [12]])
    with torch.no_grad():
        want = attend(q, k, v, queries=queries, mechanism=Softmax(bias=bias, backend="reference")).values
        flex = Softmax(bias=bias, backend=Flex(interpreted=True))
        torch.testing.assert_close(attend(q, k, v, queries=queries, mechanism=flex).values, want)
