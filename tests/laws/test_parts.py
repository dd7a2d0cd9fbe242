"""Law 5b: what the layers are, against their formulas written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import torch
from hypothesis import given
from strategies import agree, generator, seeds
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.feedforward import FeedForward, GatedFeedForward, GELUConfig, ReLUConfig, ReLUSquaredConfig, SwiGLUConfig
from regard.nn.norm import LayerNorm, RMSNorm
from regard.nn.positions.position import Rotary, Rotation, sinusoids

bases = st.sampled_from([10_000.0, 500_000.0, 30.0])
evens = st.integers(1, 16).map(lambda half: 2 * half)
dtypes = st.sampled_from([torch.float64, torch.float32])


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def same(layer: nn.Module, formula: Callable[[Tensor], Tensor], x: Tensor, what: str) -> None:
    """A layer against its formula: the values, and the gradients of the input and of every weight."""
    x = x.requires_grad_()
    sources = [x, *layer.parameters()]
    got, want = layer(x), formula(x)
    agree(got.detach(), want.detach(), what)
    upstream = random(0, *want.shape).to(want.dtype)
    pairs = [torch.autograd.grad(out, sources, upstream) for out in (got, want)]
    for one, two in zip(*pairs, strict=True):
        agree(one, two, f"{what}, gradient")


def turned(turn: Rotation, x: Tensor) -> Tensor:
    """A turn is for [B, N, H, D]; here x is [B, H, N, D]."""
    return turn.apply(x.transpose(1, 2)).transpose(1, 2)


@given(seeds, evens, bases, st.integers(0, 5000))
def test_rotary_scores_depend_on_relative_phase_only(seed: int, width: int, base: float, shift: int) -> None:
    rotary = Rotary(width, base=base)
    q, k = random(seed, 2, 1, 2, 6, width)
    phase = torch.randint(0, 50, (1, 6), generator=generator(seed))
    here, there = rotary.rotation(phase), rotary.rotation(phase + shift)
    scores = turned(here, q) @ turned(here, k).transpose(2, 3)
    agree(turned(there, q) @ turned(there, k).transpose(2, 3), scores, "both sides moved")
    relative = phase[0, :, None] - phase[0]
    for i, j in [(0, 1), (2, 5), (3, 3)]:
        apart = rotary.rotation(relative[i, j].abs().reshape(1, 1))
        forward, still = (q, k) if relative[i, j] >= 0 else (k, q)
        f, s = (i, j) if relative[i, j] >= 0 else (j, i)
        want = (turned(apart, forward[:, :, f : f + 1]) * still[:, :, s : s + 1]).sum(-1)
        agree(scores[:, :, i, j], want[..., 0], "only the difference turns")


@given(seeds, evens, bases, st.integers(0, 100_000))
def test_rotary_is_multiplication_by_a_complex_phase(seed: int, width: int, base: float, phase: int) -> None:
    """Su et al. 2021, eq. 34: the pair (x_i, x_{i+D/2}) as x_i + i·x_{i+D/2}, times e^(i·phase·base^(-2i/D))."""
    x = random(seed, 1, 1, 1, width)
    got = Rotary(width, base=base).rotation(torch.tensor([[phase]])).apply(x)[0, 0, 0]
    half = width // 2
    for i in range(half):
        angle = phase * base ** (-2 * i / width)
        turned = complex(x[0, 0, 0, i], x[0, 0, 0, i + half]) * complex(math.cos(angle), math.sin(angle))
        assert math.isclose(got[i].item(), turned.real, abs_tol=1e-8)
        assert math.isclose(got[i + half].item(), turned.imag, abs_tol=1e-8)


@given(evens, bases, st.lists(st.integers(0, 10_000), min_size=1, max_size=5))
def test_sinusoids_are_the_papers(width: int, base: float, phases: list[int]) -> None:
    """PE(p, 2i) = sin(p / base^(2i/width)), PE(p, 2i+1) = cos of the same (Vaswani et al. 2017, sec. 3.5)."""
    waves = sinusoids(torch.tensor(phases), width, base)
    for row, p in zip(waves.tolist(), phases, strict=True):
        for i in range(width // 2):
            angle = p / base ** (2 * i / width)
            assert math.isclose(row[2 * i], math.sin(angle), abs_tol=1e-9)
            assert math.isclose(row[2 * i + 1], math.cos(angle), abs_tol=1e-9)


def test_the_default_base_is_the_papers() -> None:
    assert math.isclose(sinusoids(torch.tensor([100]), 4)[0, 2].item(), math.sin(100 / 10_000 ** (2 / 4)))
    angle = 100 / 10_000 ** (2 / 4)
    turned = Rotary(4).rotation(torch.tensor([[100]])).apply(torch.tensor([[[[0.0, 1.0, 0.0, 0.0]]]]).double())
    assert math.isclose(turned[0, 0, 0, 1].item(), math.cos(angle))


@given(evens, bases, st.integers(0, 500))
def test_moving_a_sinusoid_is_a_fixed_linear_map(width: int, base: float, k: int) -> None:
    """PE(p+k) = M PE(p) for every p, and M can be read off PE(k) alone: a rotation in each plane."""
    moved = sinusoids(torch.tensor([k]), width, base)[0]
    planes = [torch.stack((torch.stack((c, s)), torch.stack((-s, c)))) for s, c in moved.view(-1, 2)]
    m = torch.block_diag(*planes)  # [width, width]
    everywhere = torch.arange(2000)
    agree(sinusoids(everywhere, width, base) @ m.T, sinusoids(everywhere + k, width, base), f"moved by {k}")
    agree(m @ m.T, torch.eye(width, dtype=m.dtype), "no length changes")


@given(
    seeds,
    st.sampled_from([(1, 1), (3, 5), (2, 50)]),
    st.integers(1, 6),
    st.booleans(),
    dtypes,
    st.sampled_from([(ReLUConfig, F.relu), (GELUConfig, F.gelu), (ReLUSquaredConfig, lambda x: F.relu(x) ** 2)]),
)
def test_a_feedforward_is_two_convolutions_of_width_one(
    seed: int, shape: tuple[int, int], width: int, bias: bool, dtype: torch.dtype, kind
) -> None:
    config, activation = kind
    network = config(2.0).build(width, bias=bias).to(dtype)
    assert isinstance(network, FeedForward)

    def convolved(x: Tensor) -> Tensor:
        up = F.conv1d(x.mT, network.up.weight[..., None], network.up.bias)
        return F.conv1d(activation(up), network.down.weight[..., None], network.down.bias).mT

    same(network, convolved, random(seed, *shape, width).to(dtype), "two convolutions")


@given(seeds, st.sampled_from([3, 100]), st.integers(1, 9), st.booleans(), dtypes)
def test_a_gated_feedforward_is_a_product_of_two_branches(
    seed: int, rows: int, width: int, bias: bool, dtype: torch.dtype
) -> None:
    network = SwiGLUConfig(1.5).build(width, bias=bias).to(dtype)
    assert isinstance(network, GatedFeedForward)
    hidden = network.down.in_features
    assert hidden % 8 == 0 or hidden == 1.5 * width  # only a fraction is rounded
    assert 1.5 * width <= hidden + 0.5 < 1.5 * width + 9

    def branches(x: Tensor) -> Tensor:
        gate, up = F.linear(x, network.gate_up.weight, network.gate_up.bias).split(hidden, dim=-1)
        return F.linear(gate / (1 + torch.exp(-gate)) * up, network.down.weight, network.down.bias)

    same(network, branches, random(seed, rows, width).to(dtype), "SwiGLU")


@given(seeds, st.integers(2, 12), st.booleans(), st.sampled_from([1e-5, 0.1]))
def test_layer_norm_is_its_formula(seed: int, width: int, bias: bool, eps: float) -> None:
    norm = LayerNorm(width, bias=bias, eps=eps).double()
    norm.gain.data = random(seed + 1, width)
    if norm.bias is not None:
        norm.bias.data = random(seed + 2, width)

    def formula(x: Tensor) -> Tensor:
        mean = x.sum(-1, keepdim=True) / width
        variance = ((x - mean) ** 2).sum(-1, keepdim=True) / width
        return (x - mean) / (variance + eps).sqrt() * norm.gain + (norm.bias if norm.bias is not None else 0)

    same(norm, formula, 3 * random(seed, 4, width) + 1, "LayerNorm")


@given(seeds, st.sampled_from([(4,), (2, 3), (2, 3, 4)]), st.integers(1, 12), st.sampled_from([1e-6, 0.1]), dtypes)
def test_rms_norm_is_its_formula(seed: int, shape: tuple[int, ...], width: int, eps: float, dtype: torch.dtype) -> None:
    norm = RMSNorm(width, eps=eps).to(dtype)
    norm.gain.data = random(seed + 1, width).to(dtype)
    x = (3 * random(seed, *shape, width) + 1).to(dtype)
    same(norm, lambda x: x / ((x**2).sum(-1, keepdim=True) / width + eps).sqrt() * norm.gain, x, "RMSNorm")


@given(seeds, evens)
def test_the_gradient_of_a_rotation_turns_back(seed: int, width: int) -> None:
    turn = Rotary(width, base=30.0).rotation(torch.arange(5)[None])
    x, upstream = random(seed, 1, 5, 2, width).requires_grad_(), random(seed + 1, 1, 5, 2, width)
    (gradient,) = torch.autograd.grad(turn.apply(x), x, upstream)
    agree(turn.apply(gradient), upstream, "turned back and forth")
