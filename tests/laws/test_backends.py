"""Law 1: the reference is the definition, and every other backend equals it, forward and backward."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import naive
import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from hypothesis import event, given
from strategies import Case, agree, cases, examples, few, generator, in_fair_shares, structured_cases
from torch import Tensor

from regard.attention import (
    BACKENDS,
    AnySlots,
    Backend,
    BackendRefused,
    Causal,
    Edges,
    Full,
    Mask,
    Packed,
    Padded,
    Plan,
    Range,
    Same,
    Softmax,
    Strided,
    Window,
    explain,
)
from regard.attention.backends.flex import Flex
from regard.attention.backends.sdpa import Structure, structure

RAN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch):
    """PyTorch's own switch to run FlexAttention's arithmetic directly: tracing each random mask takes a second."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def outcome(case: Case, backend: str | Backend) -> dict[str, Tensor]:
    """The values, and the gradient of everything that can have one."""
    mechanism = case.mechanism(backend)
    tensors = dict(zip("qkv", case.tensors(), strict=True))
    plan = mechanism.plan(case.mask, case.queries, case.keys, like=tensors["q"])
    values = mechanism(*tensors.values(), plan).values
    tensors |= dict(mechanism.named_parameters())
    upstream = torch.randn(values.shape, generator=generator(case.seed + 1), dtype=values.dtype)
    gradients = torch.autograd.grad(values, list(tensors.values()), upstream, materialize_grads=True)
    return {"values": values.detach()} | {f"gradient of {n}": g for n, g in zip(tensors, gradients, strict=True)}


def reasons_against(case: Case, backend: Backend, mechanism: Softmax) -> list[str]:
    q, k, v = case.tensors()
    return backend.refuses(mechanism.call(q, k, v, mechanism.plan(case.mask, case.queries, case.keys, like=q)))


def same(got: dict[str, Tensor], want: dict[str, Tensor], backend: str) -> None:
    assert got.keys() == want.keys()
    pairs = want["values"][..., 0].numel() * want["gradient of k"].shape[2]
    for what, x in want.items():
        shared = what not in ("values", *(f"gradient of {name}" for name in "qkv"))  # a table, by all pairs
        agree(got[what], x, f"{backend}, {what}", terms=pairs / max(1, x.numel()) if shared else 1)


@examples(2)
@given(cases(few))
def test_the_reference_is_attention_pair_by_pair(case: Case) -> None:
    want = naive.attention(
        *case.tensors(), case.mask, case.queries, case.key_slots, case.bias, case.scale, case.temperature
    )
    agree(outcome(case, "reference")["values"], want.to(case.dtype), "reference")


def check(case: Case) -> None:
    """Each backend either equals the reference or, asked for by name, refuses with all its reasons."""
    want = outcome(case, "reference")
    RAN["cases"] += 1
    auto = case.mechanism("auto")
    for name, backend in BACKENDS.items():
        reasons = reasons_against(case, backend, auto)
        event(f"{name} {'refuses' if reasons else 'runs'}")
        if reasons:
            RAN["refused"] += 1
            with pytest.raises(BackendRefused) as refusal:
                outcome(case, name)
            assert all(reason in str(refusal.value) for reason in [name, *reasons])
        elif name != "reference":
            RAN[name] += 1
            same(outcome(case, name), want, name)


@in_fair_shares(RAN, sdpa=0.1, banded=0.2, refused=0.3)
@examples(5)
@given(cases(usual=False))
def test_every_backend_equals_the_reference(case: Case) -> None:
    check(case)


@in_fair_shares(RAN, small_cpu=0.05, sdpa=0.3, banded=0.3, refused=0.3)
@examples(3)
@given(cases(usual=True))
def test_every_backend_equals_the_reference_in_usual_cases(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("how", [case for case in Structure if case is not Structure.OTHER], ids=lambda s: s.name)
@given(data=st.data())
def test_structures_without_a_dense_mask_equal_the_reference(how: Structure, data: st.DataObject) -> None:
    case = data.draw(structured_cases(how))
    assert structure(Plan(case.mask, case.queries, case.key_slots, case.keys is None)) is how
    want = outcome(case, "reference")
    same(outcome(case, "sdpa"), want, f"sdpa, {how}")
    if not reasons_against(case, BACKENDS["small_cpu"], case.mechanism("auto")):
        same(outcome(case, "small_cpu"), want, f"small_cpu, {how}")


@in_fair_shares(RAN, sdpa=0.1, banded=0.1, blocked=0.01)
@examples(3)
@given(cases())
def test_auto_never_raises_and_equals_the_reference(case: Case) -> None:
    auto = case.mechanism("auto")
    q, k, v = case.tensors()
    chosen = explain(auto.call(q, k, v, auto.plan(case.mask, case.queries, case.keys, like=q))).chosen
    event(chosen)
    RAN.update(["cases", chosen])
    same(outcome(case, "auto"), outcome(case, "reference"), f"auto ({chosen})")


@in_fair_shares(RAN, flex=0.95, grouped=0.3, biased=0.05, several_bands=0.02)
@examples(2)
@given(cases())
def test_flex_equals_the_reference(case: Case) -> None:
    """Forward only: FlexAttention has no backward pass on the CPU, and the backend says so."""
    flex, want = Flex(interpreted=True), outcome(case, "reference")["values"]
    with pytest.raises(BackendRefused, match="no backward pass outside CUDA"):
        outcome(case, flex)
    mechanism = case.mechanism(flex)
    q, k, v = (x.detach() for x in case.tensors())
    RAN["cases"] += 1
    with torch.no_grad():
        plan = mechanism.plan(case.mask, case.queries, case.keys, like=q)
        agree(mechanism(q, k, v, plan).values, want, "flex")
    RAN["flex"] += 1
    RAN["grouped"] += case.shared > 1
    RAN["biased"] += case.bias is not None
    RAN["several_bands"] += plan.queries.length > 128


# Corners that random cases reach too seldom


BY_ROW = Same(torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 1, 1]]))
GRAPHS = Edges(torch.tensor([[[True, False], [True, True]], [[False, True], [False, True]]]))


@pytest.mark.parametrize("backend", ["small_cpu", "sdpa", "banded", "auto"])
@pytest.mark.parametrize(
    ("mask", "queries", "keys", "scale"),
    [
        (BY_ROW, Range(5), None, None),
        (~BY_ROW & Causal(), Range(4, start=1), Range(5), None),
        (GRAPHS, Range(2), None, None),
        (Causal(), Packed.of([[2, 3]]), None, None),
        (Full(), Packed.of([[2, 1]], length=5), None, None),
        (Full(), Padded(torch.tensor([3]), 5), None, None),
        (Causal(), Padded(torch.tensor([3]), 5), None, None),
        (Causal(), Padded(torch.tensor([3, 0]), 5), None, None),
        (Full(), Padded(torch.tensor([3, 0]), 5), Padded(torch.tensor([0, 4]), 4), None),
        (Causal(), Range(5), None, -0.5),
        (Causal(), Range(5), None, 0.0),
        (Full(), Range(5), None, -0.5),
        (Causal(), Packed.of([[2, 3], [4]]), None, -0.5),
        (Causal(), Padded(torch.tensor([3, 5]), 5), None, 0.0),
        (Causal() & Strided(2), Range(5), None, 0.0),
        (Causal(), Range(2), Range(3, start=2), None),
        (Causal() & Window(2), Range(3, start=100), Range(70), None),
    ],
    ids=[
        "labels that differ by row",
        "labels that differ by row, across",
        "graphs that differ by row",
        "one packed row for the whole batch",
        "one packed row for the whole batch, not full",
        "one length for the whole batch",
        "one length for the whole batch, causal",
        "a row of padding alone",
        "padding on both sides",
        "a negative scale",
        "no scale at all: the mean of what is seen",
        "a negative scale, full",
        "a negative scale, packed",
        "no scale at all, padded",
        "no scale at all, strided",
        "keys all in the future",
        "keys all out of reach",
    ],
)
def test_corners(mask: Mask, queries: AnySlots, keys: AnySlots | None, scale: float | None, backend: str) -> None:
    case = Case(2, 1, 2, 4, 3, mask, queries, keys, None, scale, 1.0, torch.float64, seed=5)
    if backend == "auto" or not reasons_against(case, BACKENDS[backend], case.mechanism("auto")):
        same(outcome(case, backend), outcome(case, "reference"), backend)
    with torch.no_grad():
        flex = case.mechanism(Flex(interpreted=True))
        q, k, v = (x.detach() for x in case.tensors())
        got = flex(q, k, v, flex.plan(mask, queries, keys, like=q)).values
        agree(got, naive.attention(q, k, v, mask, queries, case.key_slots, None, scale), "flex")
