"""Refusals: each backend says why it cannot, and one asked for by name never falls back silently."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.attention import (
    BACKENDS,
    Additive,
    Alibi,
    AnySlots,
    BackendRefused,
    Bias,
    Causal,
    Explanation,
    Full,
    Mask,
    Packed,
    Padded,
    Plan,
    Range,
    Score,
    Sigmoid,
    Slots,
    SoftCap,
    Softmax,
    Strided,
    TopKSoftmax,
    Window,
    attend,
    explain,
    run,
)
from regard.attention.backends.flex import Flex
from regard.attention.backends.sdpa import KernelMask, even_widths


def call(
    mask: Mask | None = None,
    queries: AnySlots | None = None,
    keys: AnySlots | None = None,
    *,
    bias: Bias | None = None,
    score: Score | None = None,
    weights: bool = False,
    grad: bool = False,
    **options,
):
    queries = Range(6) if queries is None else queries
    width = 2
    q = torch.randn(2, 2, queries.length, width, requires_grad=grad)
    k = torch.randn(2, 2, (queries if keys is None else keys).length, width)
    mechanism = Softmax(score, bias, **options)
    return mechanism.call(q, k, k, mechanism.plan(mask or Causal(), queries, keys, like=q), weights)


def anywhere(length: int) -> Slots:
    order = torch.arange(length)[None]
    return Slots(order, order * 0, order)


PADDED, PACKED = Padded(torch.tensor([6, 2]), 6), Packed.of([[4, 2], [6]])
ON_DEVICE = PACKED._replace(documents=None)


@pytest.mark.parametrize(
    ("backend", "reason", "asked"),
    [
        ("sdpa", "scores are Additive, not dot products", {"score": Additive(2, 2, 3)}),
        ("banded", "scores are Additive, not dot products", {"score": Additive(2, 2, 3)}),
        ("sdpa", "a fused kernel cannot apply the bias Alibi", {"bias": Alibi(2)}),
        ("sdpa", "a fused kernel cannot apply the bias SoftCap", {"bias": SoftCap(2.0)}),
        ("sdpa", "top-k needs every score of a row at once", {"normalizer": TopKSoftmax(2)}),
        ("banded", "top-k needs every score of a row at once", {"normalizer": TopKSoftmax(2)}),
        ("sdpa", "a fused kernel computes the softmax only", {"normalizer": Sigmoid()}),
        ("banded", "a fused kernel computes the softmax only", {"normalizer": Sigmoid()}),
        ("sdpa", "hard lookup is no softmax", {"temperature": 0.0}),
        ("banded", "hard lookup is no softmax", {"temperature": 0.0}),
        ("sdpa", "the weights were asked for", {"weights": True}),
        ("banded", "the weights were asked for", {"weights": True}),
        ("sdpa", "this mask over padded or packed tokens", {"mask": Strided(2), "queries": PADDED}),
        ("sdpa", "this mask over padded or packed tokens", {"queries": ON_DEVICE}),
        ("sdpa", "this mask would need 9 MiB of dense mask", {"mask": Strided(2), "queries": Range(3072)}),
        ("banded", "the slots' order is known only to the device", {"queries": anywhere(6)}),
        ("banded", "the slots' order is known only to the device", {"keys": anywhere(6)}),
        ("flex", "FlexAttention has no backward pass outside CUDA", {}),
        ("flex", "FlexAttention has no dropout", {"dropout": 0.1}),
    ],
)
def test_each_reason_is_given(backend: str, reason: str, asked: dict) -> None:
    this = call(**asked)
    assert any(reason in given for given in BACKENDS[backend].refuses(this))
    with pytest.raises(
        BackendRefused, match=f"backend '{backend}' cannot do this call: .*Use backend='auto'"
    ) as refusal:
        run(this, backend)
    assert reason in str(refusal.value)
    assert explain(this).chosen != backend
    assert reason in str(explain(this))


def test_a_refused_backend_is_refused_at_planning_too() -> None:
    with pytest.raises(BackendRefused, match="top-k"):
        call(normalizer=TopKSoftmax(1), backend="sdpa")
    with pytest.raises(BackendRefused, match="outside CUDA"):
        call(backend="flex")


def test_several_reasons_are_all_given() -> None:
    with pytest.raises(BackendRefused, match=r"Alibi; top-k .*; the weights"):
        run(call(bias=Alibi(2), normalizer=TopKSoftmax(1), weights=True), "sdpa")


def test_interpreted_flex_refuses_gradients_on_the_cpu() -> None:
    assert Flex(interpreted=True).refuses(call()) == []
    assert Flex(interpreted=True).refuses(call(grad=True)) == ["FlexAttention has no backward pass outside CUDA"]


@pytest.mark.parametrize(
    ("dtype", "width", "reasons"),
    [
        (torch.float32, 16, []),
        (torch.bfloat16, 16, []),
        (torch.float64, 16, ["FlexAttention has no float64 on CUDA"]),
        (torch.float32, 8, ["FlexAttention needs heads of width 16 or more on CUDA"]),
    ],
)
def test_flex_refuses_what_its_cuda_kernels_cannot_compute(dtype: torch.dtype, width: int, reasons: list[str]) -> None:
    plan = Plan(Causal() & Window(4), Range(64), Range(64), True)
    with FakeTensorMode():
        q = torch.empty(1, 2, 64, width, dtype=dtype, device="cuda")
    assert Flex().refuses(Softmax().call(q, q, q, plan)) == reasons


def test_an_unknown_backend() -> None:
    with pytest.raises(
        BackendRefused,
        match="no backend 'fast'; choose from auto, edges, decode_gpu, small_cpu, sdpa, flex, banded, blocked, ref",
    ):
        run(call(), "fast")


def test_the_reference_never_refuses() -> None:
    hard = call(Strided(2), anywhere(6), score=Additive(2, 2, 3), normalizer=TopKSoftmax(2), weights=True)
    assert BACKENDS["reference"].refuses(hard) == []
    assert explain(hard).chosen == "reference"


def test_explain_prints_the_choice_and_every_refusal() -> None:
    shown = str(explain(call(Causal() & Window(2), Range(400))))
    assert shown.splitlines() == [
        "banded: chosen",
        "edges: the mask has no list of edges",
        "decode_gpu: it is for GPUs",
        "flex: FlexAttention has no backward pass outside CUDA",
        "small_cpu: it is for up to 128 tokens; it supports causal and full masks over plain or right-padded tokens",
        "sdpa: able, but not the first choice here",
        "blocked: able, but not the first choice here",
        "reference: able, but not the first choice here",
        "ring: able, but not the first choice here",
    ]
    assert str(Explanation("sdpa", {"flex": ["one", "two"]})) == "sdpa: chosen\nflex: one; two"


@pytest.mark.parametrize(
    ("mask", "slots", "chosen"),
    [
        (Causal(), Range(6), "small_cpu"),
        (Causal(), Range(129), "sdpa"),
        (Full(), PADDED, "sdpa"),
        (Causal(), PADDED, "small_cpu"),
        (Causal(), PACKED, "sdpa"),
        (Causal(), ON_DEVICE, "banded"),
        (Causal() & Window(4), Range(6), "sdpa"),
        (Causal() & Window(4), Range(64), "banded"),
        (Causal() & Window(4), Padded(torch.tensor([64, 9]), 64), "banded"),
        (Strided(2), PADDED, "banded"),
        (Causal(), anywhere(6), "sdpa"),
    ],
)
def test_the_choice_on_a_cpu(mask: Mask, slots: AnySlots, chosen: str) -> None:
    this = call(mask, slots)
    assert explain(this).chosen == chosen
    assert this.plan.backend == chosen


@pytest.mark.parametrize("slots", [PADDED, PACKED])
@pytest.mark.parametrize("mask", [Full(), Causal()])
def test_padded_and_packed_tokens_need_no_dense_mask(mask: Mask, slots: AnySlots) -> None:
    told = call(mask, slots, backend="sdpa").plan.prepared
    assert isinstance(told, KernelMask)
    assert told.visible is None or told.visible.shape[1:3] == (1, 1)
    assert told.blank is None or told.blank.shape[-1] == 1


def test_is_causal_is_said_of_own_tokens_only() -> None:
    assert call(Causal(), Range(6), backend="sdpa").plan.prepared.causal
    assert not call(Causal(), Range(6), Range(6), backend="sdpa").plan.prepared.causal
    assert not call(Causal(), Range(2, start=4), Range(6), backend="sdpa").plan.prepared.causal


def test_a_plan_may_serve_a_call_that_needs_another_backend() -> None:
    """The plan was made for small_cpu; asking for the weights then goes to the reference, by itself."""
    plain, asking = call(), call(weights=True)
    assert plain.plan.backend == asking.plan.backend == "small_cpu"
    assert run(asking).weights is not None
    assert run(plain).weights is None


@pytest.mark.parametrize(("width", "value_width"), [(3, 8), (8, 3), (4, 4)])
def test_a_v_of_another_width_keeps_the_fused_kernel(width: int, value_width: int) -> None:
    """Fused CPU kernels refuse unequal widths: zeros even them out, and the scale stays that of the real width."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 5, width, generator=g)
    v = torch.randn(1, 2, 5, value_width, generator=g)
    q2, k2, v2, kept = even_widths(q, k, v)
    assert q2.shape[-1] == k2.shape[-1] == v2.shape[-1] == max(width, value_width)
    assert kept == value_width
    fast = attend(q, k, v, Causal(), mechanism=Softmax(backend="sdpa")).values
    assert fast.shape == v.shape
    torch.testing.assert_close(fast, attend(q, k, v, Causal(), mechanism=Softmax(backend="reference")).values)
