"""Positions on a grid: exact at the trained resolution, interpolated as PyTorch and ViT's code do it, shift-free."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Full, Softmax
from regard.errors import UserError
from regard.nn import AttentionContext
from regard.nn.attention import AttentionSizes, SelfAttention
from regard.nn.positions.grid import (
    GridLearned,
    GridLearnedConfig,
    GridPositionConfig,
    GridRelativeConfig,
    GridRotary,
    GridRotaryConfig,
    GridSinusoidal,
    GridSinusoidalConfig,
    Interpolation,
    NoGridConfig,
    patches,
)

seeds = st.integers(0, 2**32 - 1)
small = st.integers(1, 6)
ways = st.sampled_from(["bicubic", "bilinear"])


def learned(seed: int, rows: int, columns: int, width: int, way: Interpolation) -> GridLearned:
    made = GridLearned(rows, columns, width, way).double()
    torch.nn.init.normal_(made.table.weight, generator=torch.Generator().manual_seed(seed))
    return made


@given(seeds, small, small, ways)
def test_learned_vectors_are_exact_at_the_trained_resolution(seed: int, rows: int, columns: int, way) -> None:
    made = learned(seed, rows, columns, 3, way)
    for phase in (patches(rows, columns).phase, patches(rows, columns).phase.double()):
        assert torch.equal(made.at(phase)[0], made.table.weight)
    assert not patches(rows, columns, of=(rows, columns)).phase.is_floating_point()


@given(seeds, small, small, st.integers(1, 9), st.integers(1, 9), ways)
def test_another_resolution_is_interpolated_as_pytorch_does(
    seed: int, rows: int, columns: int, down: int, across: int, way
) -> None:
    """Values, and the gradient that reaches the table."""
    made = learned(seed, rows, columns, 2, way)
    picture = made.table.weight.detach().T.reshape(1, 2, rows, columns).requires_grad_()
    want = F.interpolate(picture, size=(down, across), mode=way, align_corners=False).flatten(2).mT
    got = made.embed(torch.zeros(1, down * across, 2).double(), patches(down, across, of=(rows, columns)).phase)
    torch.testing.assert_close(got, want)
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (slope,) = torch.autograd.grad(want, picture, upstream)
    (mine,) = torch.autograd.grad(got, made.table.weight, upstream)
    torch.testing.assert_close(mine, slope.flatten(2)[0].T)


def test_another_resolution_is_interpolated_as_vit_does() -> None:
    vit: Any = pytest.importorskip("transformers.models.vit.modeling_vit")
    from transformers import ViTConfig

    theirs = vit.ViTEmbeddings(ViTConfig(image_size=32, patch_size=8, hidden_size=6, num_attention_heads=2))
    torch.nn.init.normal_(theirs.position_embeddings)
    ours = GridLearned(4, 4, 6)
    ours.table.weight.data = theirs.position_embeddings.data[0, 1:]
    for rows, columns in ((4, 4), (7, 5), (3, 8)):
        want = theirs.interpolate_pos_encoding(torch.zeros(1, 1 + rows * columns, 6), 8 * rows, 8 * columns)
        torch.testing.assert_close(ours.at(patches(rows, columns, of=(4, 4)).phase), want[:, 1:], rtol=1e-4, atol=1e-5)


@given(seeds, st.sampled_from([4, 8, 12]), st.sampled_from([100.0, 10_000.0]), st.integers(0, 300), st.integers(0, 300))
def test_rotations_see_relative_rows_and_columns_only(
    seed: int, width: int, base: float, down: int, across: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    rotary = GridRotary(width, base=base)
    q, k = torch.randn(2, 1, 6, 1, width, generator=g, dtype=torch.float64)
    phase = torch.randint(0, 9, (1, 6, 2), generator=g)

    def scores(moved: Tensor) -> Tensor:
        turn = rotary.rotation(moved)
        return turn.apply(q)[0, :, 0] @ turn.apply(k)[0, :, 0].T

    here = scores(phase)
    for by in ((down, 0), (0, across), (down, across)):
        torch.testing.assert_close(scores(phase + torch.tensor(by)), here)


def test_half_of_the_pairs_turn_by_each_axis() -> None:
    """As complex numbers: the pairs (x_i, x_{i+D/2}), the first half by the row, the others by the column."""
    x = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    got = GridRotary(8, base=100.0).rotation(torch.tensor([[[3, 5]]])).apply(x).flatten()
    pairs = torch.complex(x.flatten()[:4], x.flatten()[4:])
    angles = torch.tensor([3.0, 3.0 * 100 ** (-1 / 2), 5.0, 5.0 * 100 ** (-1 / 2)], dtype=torch.float64)
    torch.testing.assert_close(torch.complex(got[:4], got[4:]), pairs * torch.exp(1j * angles))


@given(st.integers(1, 4).map(lambda n: 4 * n), st.integers(0, 50), st.integers(0, 50))
def test_waves_of_two_axes_are_the_formula(width: int, row: int, column: int) -> None:
    x = torch.zeros(1, 1, width, dtype=torch.float64)
    got = GridSinusoidal(width, base=1000.0).embed(x, torch.tensor([[[row, column]]])).flatten().tolist()
    half = width // 2
    for axis, place in enumerate((row, column)):
        for i in range(half // 2):
            angle = place / 1000 ** (2 * i / half)
            assert got[axis * half + 2 * i] == pytest.approx(math.sin(angle), abs=1e-9)
            assert got[axis * half + 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-9)


@pytest.mark.parametrize(
    "config", [NoGridConfig(), GridSinusoidalConfig(), GridLearnedConfig(), GridRotaryConfig(), GridRelativeConfig()]
)
def test_pictures_of_any_size_go_through_attention(config: GridPositionConfig) -> None:
    """Each kind builds, takes part in the gradient, and tells a picture from its patches in another order."""
    torch.manual_seed(1)
    position = config.build(width=16, head_width=8, grid=(3, 4))
    bias = position.bias()
    layer = SelfAttention(AttentionSizes(16, 2, 2), Softmax(bias=bias))
    for parameter in [*position.parameters(), *layer.parameters()]:
        torch.nn.init.normal_(parameter)

    def run(x: Tensor, of: tuple[int, int], rows: int, columns: int) -> Tensor:
        slots = patches(rows, columns, of=of)
        plan = layer.mechanism.plan(Full(), slots, like=x)
        return layer(position.embed(x, slots.phase), AttentionContext(plan, position.rotation(slots.phase)))

    x, order = torch.randn(2, 12, 16), torch.randperm(12)
    out = run(x, (3, 4), 3, 4)
    moved = torch.allclose(run(x[:, order], (3, 4), 3, 4), out[:, order], atol=1e-4)
    assert moved == isinstance(config, NoGridConfig)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in [*position.parameters(), *layer.parameters()])
    if isinstance(config, GridRelativeConfig):
        assert run(torch.randn(2, 35, 16), (5, 7), 5, 7).isfinite().all()
    else:
        assert run(torch.randn(2, 35, 16), (3, 4), 5, 7).isfinite().all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="a head width of 6 is no multiple of 4"):
        GridRotary(6)
    with pytest.raises(UserError, match="multiple of 4, not 10"):
        GridSinusoidal(10)
    with pytest.raises(NotImplementedError):
        GridPositionConfig().build(width=4, head_width=4, grid=(1, 1))
    slots = patches(2, 3, of=(4, 6))
    layer = Softmax(bias=GridRelativeConfig().build(width=8, head_width=4, grid=(4, 6)).bias())
    x = torch.randn(1, 2, 6, 4)
    with pytest.raises(UserError, match="needs integer distances"):
        layer(x, x, x, layer.plan(Full(), slots, like=x))
