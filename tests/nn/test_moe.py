"""Mixtures of experts against a loop over tokens, against dense networks, and against their own declarations."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional as F

from regard.config import kinds
from regard.nn.auxiliary_loss import AuxiliaryLoss, collect
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import balance_loss, order, route, share, z_loss
from regard.nn.feedforward import ACTIVATIONS, FeedForwardConfig, relu_squared
from regard.nn.fused import install
from regard.nn.fused.experts import SLOPES
from regard.nn.linear import Linear

WIDTH = 8
seeds = st.integers(0, 2**32 - 1)


@st.composite
def configs(draw: st.DrawFn, **fixed) -> MoEConfig:
    experts = draw(st.integers(1, 5))
    active = draw(st.integers(1, experts))
    drawn = {
        "ratio": draw(st.sampled_from([1.0, 0.5])),
        "experts": experts,
        "active": active,
        "shared": draw(st.integers(0, 2)),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
        "normalise": draw(st.sampled_from([None, False, True] if active > 1 else [None, False])),
    }
    return MoEConfig(**(drawn | fixed))


def made(config: MoEConfig, seed: int, bias: bool = False, dtype: torch.dtype = torch.float64) -> MixtureOfExperts:
    layer = config.build(WIDTH, bias=bias).to(dtype)
    assert isinstance(layer, MixtureOfExperts)
    g = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=dtype) / 2
    return layer


def inputs(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def one_expert(layer: MixtureOfExperts, number: int, x: Tensor) -> Tensor:
    """One expert's network, straight from the rows of the stacked weights."""
    up, down = layer.get_submodule("gate_up" if layer.gated else "up"), layer.down
    count = layer.config.experts + layer.config.shared

    def through(x: Tensor, linear) -> Tensor:
        rows = linear.weight.shape[0] // count
        here = slice(number * rows, (number + 1) * rows)
        return F.linear(x, linear.weight[here], None if linear.bias is None else linear.bias[here])

    hidden = through(x, up)
    if layer.gated:
        half = hidden.shape[-1] // 2
        hidden = layer.activation(hidden[..., :half]) * hidden[..., half:]
    else:
        hidden = layer.activation(hidden)
    return through(hidden, down)


def naive(layer: MixtureOfExperts, x: Tensor, keep: set[tuple[int, int]] | None = None) -> Tensor:
    """Token by token; ``keep``: the only pairs (token, expert) that are not dropped."""
    config, rows = layer.config, []
    for number, token in enumerate(x.flatten(0, -2)):
        probabilities = (layer.router.weight @ token).softmax(0)
        scores = probabilities.tolist()
        best = sorted(range(config.experts), key=lambda e: (-scores[e], e))[: config.active]
        whole = sum(probabilities[e] for e in best) if layer.normalise else 1.0
        row = torch.zeros_like(token)
        for expert in best:
            if keep is None or (number, expert) in keep:
                row = row + probabilities[expert] / whole * one_expert(layer, expert, token)
        for expert in range(config.experts, config.experts + config.shared):
            row = row + one_expert(layer, expert, token)
        rows.append(row)
    return torch.stack(rows).view(x.shape)


def gradients(layer: MixtureOfExperts, out: Tensor, x: Tensor) -> list[Tensor]:
    upstream = inputs(5, *out.shape[:-1])
    found = torch.autograd.grad(out, [x, *layer.parameters()], upstream, allow_unused=True, retain_graph=True)
    zeros = [x, *layer.parameters()]
    return [torch.zeros_like(z) if g is None else g for g, z in zip(found, zeros, strict=True)]


@given(configs(), seeds, st.booleans(), st.integers(1, 7))
def test_it_is_the_loop_over_tokens_forward_and_backward(config: MoEConfig, seed: int, bias: bool, length: int) -> None:
    layer, x = made(config, seed, bias), inputs(seed + 1, 2, length).requires_grad_()
    got, want = layer(x), naive(layer, x)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    for a, b in zip(gradients(layer, got, x), gradients(layer, want, x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@given(configs(), seeds)
def test_a_token_does_not_see_the_others(config: MoEConfig, seed: int) -> None:
    """Permuted tokens give permuted answers, and one token alone, as in decoding, gives its own."""
    layer, x = made(config, seed), inputs(seed + 1, 3, 5)
    assert layer.batch_invariant
    whole = layer(x)
    turned = torch.randperm(15, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(layer(x.flatten(0, 1)[turned]), whole.flatten(0, 1)[turned], rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x[1:2, 3:4]), whole[1:2, 3:4], rtol=0, atol=1e-12)


@given(configs(), seeds)
def test_gates_are_the_probabilities_of_the_best(config: MoEConfig, seed: int) -> None:
    logits = inputs(seed, 9)[:, : config.experts]
    for normalise in (False, True):
        found = route(logits, config.active, normalise)
        assert all(len(set(row)) == config.active for row in found.experts.tolist())
        sums = found.gates.sum(-1)
        if normalise:
            torch.testing.assert_close(sums, torch.ones_like(sums))
            chosen = logits.gather(-1, found.experts).softmax(-1)  # Mixtral's way to say it
            torch.testing.assert_close(found.gates, chosen)
        else:
            torch.testing.assert_close(sums, logits.softmax(-1).topk(config.active).values.sum(-1))


def test_equal_scores_go_to_the_lower_number() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 3.0, 1.0]])
    assert route(logits, 3, True).experts.tolist() == [[1, 2, 3], [0, 1, 2], [0, 2, 1]]


@given(seeds, st.integers(1, 6), st.integers(1, 9))
def test_the_order_sorts_by_expert_then_by_token(seed: int, count: int, tokens: int) -> None:
    experts = route(inputs(seed, tokens)[:, :count], min(2, count), False).experts
    found = order(experts, count)
    flat = experts.flatten().tolist()
    assert found.pair.tolist() == sorted(range(len(flat)), key=lambda pair: (flat[pair], pair))
    assert found.token.tolist() == [pair // experts.shape[1] for pair in found.pair.tolist()]
    assert found.pair[found.place].tolist() == list(range(len(flat)))
    assert found.ends.tolist() == [sum(e <= number for e in flat) for number in range(count)]


# Dense networks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_one_expert_is_the_dense_network_bit_for_bit(activation: str, bias: bool, dtype: torch.dtype) -> None:
    dense = kinds(FeedForwardConfig)[activation](ratio=2.0).build(WIDTH, bias=bias).to(dtype)  # type: ignore
    layer = made(MoEConfig(ratio=2.0, experts=1, active=1, activation=activation), 0, bias, dtype)  # type: ignore
    layer.load_state_dict(dense.state_dict() | {"router.weight": layer.router.weight})
    install(layer), install(dense)  # the readable experts add biases by a product, which rounds differently
    for rows in (3, 80):  # fewer and more than oneDNN takes
        x = inputs(1, 2, rows, dtype=dtype).requires_grad_()
        got, want = layer(x), dense(x)
        assert torch.equal(got, want)
        names = [name for name, _ in dense.named_parameters()]
        leaves = [[x, *(model.get_parameter(name) for name in names)] for model in (layer, dense)]
        found = [torch.autograd.grad(out.square().sum(), of) for out, of in zip((got, want), leaves, strict=True)]
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@given(seeds, st.integers(2, 4))
def test_equal_experts_that_are_all_active_are_one(seed: int, experts: int) -> None:
    layer = made(MoEConfig(ratio=1.0, experts=experts, active=experts), seed)
    for linear in (layer.get_submodule("gate_up"), layer.down):
        assert isinstance(linear, Linear)
        linear.weight.data = linear.weight.data[: linear.parts[0]].repeat(experts, 1)
    x = inputs(seed + 1, 2, 6)
    torch.testing.assert_close(layer(x), one_expert(layer, 0, x), rtol=0, atol=1e-12)


def test_each_expert_is_a_part_of_its_own() -> None:
    layer = MoEConfig(ratio=1.0, experts=3, active=1, shared=1).build(WIDTH, bias=False)
    assert isinstance(layer, MixtureOfExperts)
    assert layer.get_submodule("gate_up").parts == (16,) * 4
    assert layer.down.parts == (8,) * 4
    assert layer.inactive_parameters == 2 * (16 * 8 + 8 * 8)


# Losses and statistics


def auxiliary(layer: MixtureOfExperts, x: Tensor) -> AuxiliaryLoss:
    (said,) = collect(layer, lambda: layer(x))[1]
    return said


def test_balance_is_one_where_experts_are_used_alike_and_greatest_where_one_takes_all() -> None:
    even = torch.eye(4, dtype=torch.float64).repeat(3, 1)  # each expert a quarter of the tokens
    found = route(even, 1, False)
    assert float(balance_loss(share(found.experts, 4), found.probabilities)) == pytest.approx(1.0)
    found = route(torch.zeros(8, 4, dtype=torch.float64), 4, True)
    assert float(balance_loss(share(found.experts, 4), found.probabilities)) == pytest.approx(1.0)
    one = torch.tensor([[50.0, 0.0, 0.0, 0.0]], dtype=torch.float64).repeat(6, 1)
    found = route(one, 1, False)
    assert float(balance_loss(share(found.experts, 4), found.probabilities)) == pytest.approx(4.0)


@given(configs(balance=0.5, z=0.25), seeds)
def test_what_it_tells_are_the_papers_formulas(config: MoEConfig, seed: int) -> None:
    layer, x = made(config, seed), inputs(seed + 1, 2, 6).requires_grad_()
    said = auxiliary(layer, x)
    logits = x.flatten(0, 1) @ layer.router.weight.T
    probabilities = logits.softmax(-1)
    chosen = route(logits, config.active, False).experts
    f = torch.stack([(chosen == e).double().mean() for e in range(config.experts)])
    balance = config.experts * (f * probabilities.mean(0)).sum()
    z = logits.exp().sum(-1).log().square().mean()
    for (weight, value), wanted in zip(said.losses.values(), [(0.5, balance), (0.25, z)], strict=True):
        assert weight == wanted[0]
        torch.testing.assert_close(value, wanted[1], rtol=0, atol=1e-6)  # shares are float32
        a, b = torch.autograd.grad(value, x, retain_graph=True), torch.autograd.grad(wanted[1], x, retain_graph=True)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert float(said.details["expert_share"].sum()) == pytest.approx(1.0)
    torch.testing.assert_close(said.details["expert_gate"], probabilities.mean(0).detach())
    torch.testing.assert_close(z_loss(logits), z)


def test_it_tells_in_training_only_and_keeps_nothing() -> None:
    layer, x = made(MoEConfig(), 0), inputs(1, 2, 6)
    layer(x)
    assert layer.recorded == ()
    assert len(auxiliary(layer, x).losses) == 2
    assert layer.recorded == ()
    assert collect(layer.eval(), lambda: layer(x))[1] == []
    assert auxiliary(made(MoEConfig(balance=0.0, z=0.0), 0), x).losses == {}


# Capacity


@given(configs(), st.sampled_from([0.3, 0.6, 1.0, 1.5, 9.0]), seeds, st.integers(1, 7), st.booleans())
def test_capacity_drops_exactly_the_overflow_in_token_order(
    config: MoEConfig, factor: float, seed: int, length: int, bias: bool
) -> None:
    layer, x = made(replace(config, capacity=factor), seed, bias), inputs(seed + 1, 2, length).requires_grad_()
    assert isinstance(layer, CapacityExperts)
    assert not layer.batch_invariant
    places, taken, keep = layer.places(2 * length), [0] * config.experts, set()
    chosen = route(layer._logits(x.flatten(0, 1)), config.active, layer.normalise).experts.tolist()
    for token, experts in enumerate(chosen):
        for expert in experts:
            if taken[expert] < places:
                keep.add((token, expert))
            taken[expert] += 1
    got, want = layer(x), naive(layer, x, keep)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    for a, b in zip(gradients(layer, got, x), gradients(layer, want, x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    pairs = 2 * length * config.active
    assert float(auxiliary(layer, x).details["expert_dropped"]) == pytest.approx(1 - len(keep) / pairs, abs=1e-6)
    torch.testing.assert_close(layer.eval()(x), naive(layer, x), rtol=0, atol=1e-10)  # nothing is dropped any more


# Compilers, numbers, refusals


@pytest.mark.filterwarnings("default")  # torch's compiler has warnings of its own
@pytest.mark.parametrize(("capacity", "bias"), [(None, True), (0.7, False)])
def test_it_traces_as_one_graph(capacity: float | None, bias: bool) -> None:
    layer = made(MoEConfig(ratio=1.0, experts=4, shared=1, capacity=capacity), 0, bias)
    x = inputs(1, 2, 9).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="aot_eager")
    got, want = compiled(x), layer(x)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for a, b in zip(gradients(layer, got, x), gradients(layer, want, x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_under_autocast_the_router_stays_wide() -> None:
    layer, x = made(MoEConfig(), 0, dtype=torch.float32), inputs(1, 2, 90, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
        assert layer._logits(x.flatten(0, 1)).dtype == torch.float32
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), layer(x), rtol=0.05, atol=0.1)
    got.sum().backward()
    assert layer.down.weight.grad is not None
    assert layer.down.weight.grad.dtype == torch.float32


def wide_square(x: Tensor) -> Tensor:
    """The squared ReLU in another format, as autocast computes squares on a GPU."""
    return F.relu(x).double().square()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("capacity", [None, 0.7])
def test_an_activation_that_autocast_computes_in_another_format(
    monkeypatch, fast: bool, capacity: float | None
) -> None:
    monkeypatch.setitem(SLOPES, wide_square, SLOPES[relu_squared])
    config = MoEConfig(experts=4, shared=1, activation="relu2", capacity=capacity)
    layer, x = made(config, 0, dtype=torch.float32), inputs(1, 2, 40, dtype=torch.float32).requires_grad_()
    want = layer(x)
    wanted = torch.autograd.grad(want.square().sum(), [x, *layer.parameters()])
    layer.activation = wide_square
    if fast:
        install(layer)
    got = layer(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want)
    found = torch.autograd.grad(got.square().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_experts_without_rows_have_zero_gradients(bias: bool, fast: bool, device: str) -> None:
    """As on a rank whose experts nobody has chosen."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    dtype = torch.bfloat16 if device == "cuda" else torch.float64  # with and without PyTorch's grouped kernel
    layer = made(MoEConfig(ratio=2.0, experts=4), 0, bias, dtype).to(device)
    if fast:
        install(layer)
    x = torch.empty(0, WIDTH, device=device, dtype=dtype).requires_grad_()
    weights, _ = layer._weights(dtype)
    layer._networks(x, torch.zeros(4, dtype=torch.long, device=device), weights).sum().backward()
    for parameter in (x, *layer.get_submodule("gate_up").parameters(), *layer.down.parameters()):
        assert parameter.grad is not None
        assert not parameter.grad.any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])  # with and without PyTorch's grouped kernel
def test_every_activation_under_autocast_on_a_gpu(activation: str, fast: bool, dtype: torch.dtype) -> None:
    config = MoEConfig(ratio=2.0, experts=4, shared=1, activation=activation)  # type: ignore
    layer = made(config, 0, dtype=torch.float32).cuda()
    x = inputs(1, 2, 90, dtype=torch.float32).cuda().requires_grad_()
    want = layer(x)
    wanted = torch.autograd.grad(want.sum(), [x, *layer.parameters()])
    if fast:
        install(layer)
    with torch.autocast("cuda", dtype):
        got = layer(x)
    found = torch.autograd.grad(got.float().sum(), [x, *layer.parameters()])
    for a, b in zip([got, *found], [want, *wanted], strict=True):
        assert float((a.float() - b).norm() / b.norm()) < 0.05  # 8 bits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 0}, "at least one expert"),
        ({"active": 9}, "active must be from 1 to the number of experts, 8, not 9"),
        ({"active": 1, "normalise": True}, "gives the router no gradient"),
        ({"capacity": 0.0}, "capacity must be a finite number above 0"),
        ({"balance": -1.0}, "balance must be a finite number of at least 0"),
    ],
)
def test_what_cannot_be_routed_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MoEConfig(**changes).check()
