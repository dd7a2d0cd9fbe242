"""Recurrences: parallel forms against loops, and the layers against the formulas of their papers."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.signal import cont2discrete
from torch import Tensor
from torch.nn import functional as F

from regard.attention import (
    S4D,
    AttentionConfig,
    Causal,
    Full,
    GatedMean,
    LayerSpec,
    Mechanism,
    Packed,
    Padded,
    Plan,
    Range,
    SelectiveScan,
    Slots,
)
from regard.attention.mechanisms import scan as scans
from regard.config import load
from regard.errors import UserError
from regard.nn.attention import AttentionContext, AttentionSizes
from regard.nn.mixers import MambaConfig
from regard.nn.positions.position import NoRotation

seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 64, 100, 129]))
dtypes = st.sampled_from([torch.float64, torch.complex128])


def draws(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@given(seeds, lengths, dtypes)
def test_blocks_side_by_side_equal_the_loop(seed: int, length: int, dtype: torch.dtype) -> None:
    a, b, before = draws(seed, (2, length, 3), (2, length, 3), (2, 3), dtype=dtype)
    a = a / a.abs().clamp(min=1)
    close(scans.blocked(a, b, before), scans.loop(a, b, before))


@given(seeds, st.integers(1, 20), st.integers(1, 20), dtypes)
def test_two_pieces_are_one(seed: int, first: int, second: int, dtype: torch.dtype) -> None:
    """Associativity: a text in two pieces, the second from the state after the first."""
    a, b, before = draws(seed, (2, first + second, 3), (2, first + second, 3), (2, 3), dtype=dtype)
    a = a / a.abs().clamp(min=1)
    whole = scans.scan(a, b, before)
    begin = scans.scan(a[:, :first], b[:, :first], before)
    close(torch.cat((begin, scans.scan(a[:, first:], b[:, first:], begin[:, -1])), dim=1), whole)


@pytest.mark.parametrize("wide", [0, 10**9], ids=["step by step", "in blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_gradient_is_the_recurrence_in_reverse(
    wide: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "WIDE", wide)
    a, b, before = (x.requires_grad_() for x in draws(1, (2, 11, 2), (2, 11, 2), (2, 2), dtype=dtype))
    assert torch.autograd.gradcheck(scans.linear_scan, (a, b, before))


def definition(dt: Tensor, a: Tensor, u: Tensor, b: Tensor, c: Tensor, keep: Tensor, state: Tensor) -> Tensor:
    """Gu and Dao 2023, algorithm 2 and eq. 2, in loops over rows, tokens, channels and numbers of a state."""
    ys, state = torch.zeros_like(u), state.clone()
    for row, t, d in np.ndindex(*u.shape):
        for s in range(a.shape[0]):
            decay = keep[row, t] * math.exp(dt[row, t, d] * a[s, d])
            state[row, s, d] = decay * state[row, s, d] + u[row, t, d] * b[row, t, s]
            ys[row, t, d] += c[row, t, s] * state[row, s, d]
    return ys


@pytest.mark.parametrize("chunk", [1, 2**18], ids=["chunks", "at once"])
def test_state_spaces_equal_loops_and_their_gradients_differences(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "CHUNK", chunk)  # 1: the least length of a chunk, 16
    rows, length, channels, states = 2, 19, 2, 3
    shapes = [(rows, length, channels)] * 2 + [(rows, length, states)] * 2 + [(rows, states, channels)]
    step, u, b, c, before = draws(3, *shapes)
    dt, keep = step.abs(), (draws(4, (rows, length))[0] > -1).double()
    a = -draws(5, (states, channels))[0].abs()
    y, _ = scans.state_space(dt, a, u, b, c, keep, before)
    close(y, definition(dt, a, u, b, c, keep, before))
    inputs = tuple(x.requires_grad_() for x in (dt, a, u, b, c, before))
    assert torch.autograd.gradcheck(
        lambda dt, a, u, b, c, before: scans.state_space(dt, a, u, b, c, keep, before), inputs, fast_mode=True
    )


@pytest.mark.parametrize(("spectrum", "state"), [("lin", 4), ("inv", 6)])
def test_s4d_is_the_discretized_system(spectrum: str, state: int) -> None:
    """Its kernel is the impulse response of x' = A x + B u, y = 2 Re(C x) after SciPy's zero-order hold."""
    torch.manual_seed(1)
    mechanism = S4D(2, 3, state, spectrum).double()  # type: ignore[arg-type]
    n = np.arange(state // 2)
    frequency = np.pi * n if spectrum == "lin" else state / np.pi * (state / (2 * n + 1) - 1)  # Gu et al. 2022, 4.3
    a = np.diag(-0.5 + 1j * frequency)
    kernel = mechanism.kernel(50).detach().numpy()
    c = torch.view_as_complex(mechanism.c.detach().view(2, 6, -1).movedim(0, -1).contiguous()).numpy()
    for d, step in enumerate(mechanism.log_step.detach().exp().numpy()):
        ad, bd, *_ = cont2discrete((a, np.ones((len(n), 1)), np.zeros((1, len(n))), np.zeros((1, 1))), step)  # type: ignore[misc]
        powers = [np.linalg.matrix_power(ad, l) @ bd for l in range(50)]  # noqa: E741
        np.testing.assert_allclose(kernel[d], [2 * (c[d] @ p)[0].real for p in powers], atol=1e-6)


MECHANISMS = {
    "s4d": lambda h, d: S4D(h, d, 6, "lin"),
    "selective": lambda h, d: SelectiveScan(h, d, 3),
    "mean": GatedMean,
}


def made(name: str, heads: int, width: int, seed: int = 1) -> Mechanism:
    torch.manual_seed(seed)
    mechanism = MECHANISMS[name](heads, width).double()
    with torch.no_grad():
        for parameter in mechanism.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return mechanism


def given_inputs(name: str, rows: int, heads: int, width: int, length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the layers make them."""
    v, keys, q = draws(seed, (rows, heads, length, width), (rows, heads, length, 3 + width), (rows, 1, length, 3))
    if name == "selective":
        k = torch.cat((keys[:, :1, :, :3].expand(-1, heads, -1, -1), keys[..., 3:]), dim=-1)
        return q.expand(-1, heads, -1, -1), k, v
    k = F.softplus(keys[..., 3:])
    return (k, k, v) if name == "mean" else (v, v, v)


def planned(mechanism: Mechanism, slots: Range | Padded | Packed, like: Tensor) -> Plan:
    return mechanism.plan(Causal(), slots, like=like)


@settings(max_examples=15)
@given(st.sampled_from(list(MECHANISMS)), seeds, st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_convolution_scan_and_steps_agree(name: str, seed: int, cut: list[int]) -> None:
    """A whole text, the same text as one packed document, and pieces of it one after the other."""
    mechanism, length = made(name, 2, 3), sum(cut)
    q, k, v = given_inputs(name, 2, 2, 3, length, seed)
    whole = mechanism(q, k, v, planned(mechanism, Range(length), v)).values
    packed = Packed.of([[length]] * 2)
    close(mechanism(q, k, v, planned(mechanism, packed, v)).values, whole)
    state, found = mechanism.start(2, 2, 1, 3, v), []
    for pieces in zip(*(x.split(cut, dim=2) for x in (q, k, v)), strict=True):
        plan = planned(mechanism, Range(pieces[2].shape[2]), v)
        found.append(mechanism.step(*pieces, plan, state, None).values)  # type: ignore[arg-type]
    close(torch.cat(found, dim=2), whole)


@settings(max_examples=15)
@given(st.sampled_from(list(MECHANISMS)), seeds)
def test_weights_are_the_mean_size_of_the_responses_to_unit_values(name: str, seed: int) -> None:
    mechanism, length = made(name, 2, 3), 14
    q, k, v = given_inputs(name, 2, 2, 3, length, seed)
    plan = planned(mechanism, Packed.of([[3, 9], [14]], length), v)
    skip = getattr(mechanism, "skip", torch.zeros(6)).view(2, 1, 3)
    sizes = torch.zeros(2, 2, length, length).double()
    for j in range(length):
        unit = torch.zeros_like(v)
        unit[:, :, j] = 1
        sizes[..., j] = (mechanism(q, k, unit, plan).values - unit * skip).abs().mean(-1)
    found = mechanism.weights(q, k, plan)
    assert found is not None
    real = torch.tensor([[True] * 12 + [False] * 2, [True] * 14])[:, None, :, None]
    close(found, torch.where(real, sizes, 0))


def test_gated_means_are_the_minimal_gru() -> None:
    """h_t = (1 - z_t) h_{t-1} + z_t h̃_t (Feng et al. 2024, sec. 3.1), with the layer's gates."""
    for kind in ("mingru", "minlstm"):
        config = load(AttentionConfig, {"kind": kind, "gate": False, "kernel": 0})
        layer = config.layer(AttentionSizes(6, 2, 2), config.mechanism(LayerSpec(2, 2, 3, 8))).double()  # type: ignore
        x = draws(1, (2, 9, 6))[0]
        context = AttentionContext(planned(layer.mechanism, Range(9), x), NoRotation())
        value, *gates = layer.inputs(x).split(6, dim=-1)
        z = torch.sigmoid(gates[0])
        if kind == "minlstm":
            f, i = torch.sigmoid(gates[0]), torch.sigmoid(gates[1])
            z = i / (f + i)
        h, want = torch.zeros(2, 6).double(), []
        for t in range(9):
            h = (1 - z[:, t]) * h + z[:, t] * value[:, t]
            want.append(layer.out(h))
        close(layer(x, context), torch.stack(want, dim=1))


def test_the_short_convolution_is_conv1d() -> None:
    config = MambaConfig(kernel=3, state=2)
    layer = config.build(AttentionSizes(6, 2, 2), config.mechanism(LayerSpec(2, 2, 3, 8))).double()
    u = draws(1, (2, 9, 12))[0]
    context = AttentionContext(planned(layer.mechanism, Range(9), u), NoRotation())
    assert layer.convolution is not None
    found = layer._convolve(u, layer.convolution, context, None)
    close(found, layer.convolution(F.pad(u.mT, (2, 0))).mT)


def test_what_cannot_be_read_from_left_to_right_is_refused() -> None:
    mechanism, v = made("mean", 2, 3), torch.zeros(1, 2, 4, 3).double()
    with pytest.raises(UserError, match="left to right"):
        mechanism.plan(Full(), Range(4), like=v)
    place = torch.arange(4)[None]
    with pytest.raises(UserError, match="Range, Padded or Packed"):
        mechanism.plan(Causal(), Slots(place, place * 0, place), like=v)
