"""Under autocast every part computes in 16 bits, forward and backward, with the list of a CPU and with that of a GPU.

Gradients have the dtype of what they belong to, and differ from those in float32 by rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu_autocast import gpu_autocast
from model_kit import GPT, MODELS, build, inputs, loss, randomized
from torch import Tensor, nn

from regard.attention import (
    BACKENDS,
    BackendRefused,
    Causal,
    Full,
    LinearConfig,
    Padded,
    Range,
    Softmax,
    SoftmaxConfig,
    Window,
)
from regard.attention.backends.small_cpu import SmallCPU
from regard.config import kinds
from regard.nn.blocks.block import BlockConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import ACTIVATIONS, FeedForwardConfig
from regard.nn.fused import install

Casts = Callable[[], AbstractContextManager]
HALF = torch.bfloat16
NEAR = 0.1  # bfloat16 has 8 bits, and a unit at the kink of its activation may be on the other side
LISTS = {"a CPU's list": nullcontext, "a GPU's list": gpu_autocast}
WIDTH = 16
EXPERTS = [
    MoEConfig(ratio=1.0, experts=4, activation=activation, shared=shared, capacity=capacity)  # type: ignore[arg-type]
    for activation, shared, capacity in itertools.product(ACTIVATIONS, (0, 1), (None, 0.7))
    if activation != "silu"  # no kind of expert
]
NETWORKS = [kind() for name, kind in kinds(FeedForwardConfig).items() if name != "moe"] + EXPERTS


@pytest.fixture(autouse=True)
def portable() -> Iterator[None]:
    """PyTorch's own kernels for 16 bits: some CPUs have no instructions for oneDNN's, or die of them."""
    enabled, *_ = torch.backends.mkldnn.set_flags(False)
    yield
    torch.backends.mkldnn.set_flags(enabled)


@pytest.fixture(params=LISTS)
def casts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Casts:
    if LISTS[request.param] is gpu_autocast:  # a backend for CPUs does not meet that list
        monkeypatch.setattr(SmallCPU, "refuses", lambda self, call: ["it is for CPUs"])
    return LISTS[request.param]


def near(got: Sequence[Tensor | None], want: Sequence[Tensor | None], like: Sequence[Tensor]) -> None:
    """Gradients of ``like``, together within rounding."""
    assert [x is None for x in got] == [x is None for x in want]
    assert all(x is None or x.dtype == y.dtype for x, y in zip(got, like, strict=True))
    pairs = [(x.float() - y, y) for x, y in zip(got, want, strict=True) if x is not None and y is not None]
    error, size = (torch.cat([pair[i].flatten() for pair in pairs]).norm() for i in (0, 1))
    assert error <= NEAR * size


def gradients(loss: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, parts, allow_unused=True)


def network(config: FeedForwardConfig, *, bias: bool, fast: bool) -> nn.Module:
    torch.manual_seed(0)
    layer = config.build(WIDTH, bias=bias)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    if fast:
        install(layer)
    return layer


@pytest.mark.parametrize("fast", [False, True], ids=["", "fast"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_feed_forward_networks(casts: Casts, bias: bool, fast: bool) -> None:
    for config in NETWORKS:
        layer = network(config, bias=bias, fast=fast)
        x = torch.randn(2, 20, WIDTH, requires_grad=True)
        parts = [x, *layer.parameters()]
        want = layer(x)
        if not want.requires_grad:
            continue  # the network that adds nothing
        upstream = torch.randn_like(want)
        with casts():
            with torch.autocast("cpu", HALF):
                got = layer(x)
            near([got.float()], [want], [want])
            near(gradients((got * upstream).sum(), parts), gradients((want * upstream).sum(), parts), parts)


@pytest.mark.parametrize("recomputed", [False, True], ids=["", "recomputed"])
@pytest.mark.parametrize("attention", [SoftmaxConfig(), LinearConfig()], ids=lambda config: config.kind)
@pytest.mark.parametrize("block", kinds(BlockConfig).values(), ids=kinds(BlockConfig))
def test_blocks_of_experts(casts: Casts, block: Any, attention: Any, recomputed: bool) -> None:
    # Every expert is active: rounding cannot route a token to another one.
    experts = MoEConfig(ratio=1.0, experts=2, active=2, shared=1, activation="relu2")
    config = replace(GPT, kv_heads=None, ngrams=1, block=block(), attention=attention, feedforward=experts)
    model = randomized(config, torch.float32).train()
    model.checkpointing = recomputed
    batch, parts = inputs(model), list(model.parameters())
    want = gradients(loss(model, batch), parts)
    with casts():
        with torch.autocast("cpu", HALF):
            total = loss(model, batch)
        near(gradients(total, parts), want, parts)


@pytest.mark.parametrize("name", MODELS)
def test_models(casts: Casts, name: str) -> None:
    model = build(name, torch.float32).train()
    batch = inputs(model)
    batch = batch._replace(arguments=tuple(x.float() if x.is_floating_point() else x for x in batch.arguments))
    with casts():
        with torch.autocast("cpu", HALF):
            total = loss(model, batch)
        total.backward()
    assert total.isfinite()
    for parameter in model.parameters():
        assert parameter.grad is None or (parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all())


MASKS = {"causal": Causal(), "full": Full(), "window": Window(5)}
SLOTS = {"plain": Range(24), "padded": Padded(torch.tensor([20, 24]), 24)}
FORMATS = list(itertools.product((torch.float32, HALF), repeat=3))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("slots", SLOTS)
def test_backends(casts: Casts, mask: str, slots: str) -> None:
    """Queries, keys and values in any formats, as norms and positions leave them."""
    ran = {name for name in BACKENDS for formats in FORMATS if attends(casts, name, mask, slots, formats)}
    small = casts is nullcontext and mask != "window" and (mask, slots) != ("full", "padded")
    assert ran >= {"reference", "banded", "ring"} | ({"small_cpu"} if small else set())


def attends(casts: Casts, backend: str, mask: str, slots: str, formats: Sequence[torch.dtype]) -> bool:
    """Whether the backend takes the call; then it has computed it, forward and backward."""
    torch.manual_seed(0)
    exact = [torch.randn(2, heads, 24, 8, requires_grad=True) for heads in (4, 2, 2)]
    parts = [x.detach().to(form).requires_grad_() for x, form in zip(exact, formats, strict=True)]
    mechanism = Softmax(backend=backend)
    try:
        plan = mechanism.plan(MASKS[mask], SLOTS[slots], like=parts[0])
        want = mechanism(*exact, plan).values
    except BackendRefused:
        return False
    upstream = torch.randn_like(want)
    with casts():
        with torch.autocast("cpu", HALF):
            got = mechanism(*parts, plan).values
        near([got.float()], [want], [want])
        near(gradients((got * upstream).sum(), parts), gradients((want * upstream).sum(), exact), parts)
    return True
