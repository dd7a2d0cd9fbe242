"""Every form of a mask that ``attend`` takes equals the reference and PyTorch's own attention, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from hypothesis import given
from strategies import agree, examples, generator, seeds
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from regard.attention import (
    BACKENDS,
    Alibi,
    Backend,
    BackendRefused,
    Causal,
    Edges,
    Padded,
    Range,
    Slots,
    Softmax,
    Window,
    attend,
)
from regard.attention.backends.flex import Flex


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch):
    """PyTorch's own switch to run FlexAttention's arithmetic directly: tracing each random mask takes a second."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def drawn(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()


def outcome(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The values, and the gradients of a weighted sum of them."""
    values = function(*tensors)
    upstream = torch.randn(values.shape, generator=generator(1), dtype=values.dtype)
    inputs = [x for x in tensors if x.requires_grad]
    return [values.detach(), *torch.autograd.grad(values, inputs, upstream, materialize_grads=True)]


def backends() -> list[str | Backend]:
    return ["auto", *(name for name in BACKENDS if name != "flex")]


def on_every_backend(want: list[Tensor], mask: Any, *tensors: Tensor, **named: Any) -> int:
    """Compare with ``want`` on each backend that takes the mask; return the number of those that do."""
    ran = 0
    for backend in backends():

        def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, backend: Any = backend) -> Tensor:
            form = mask if bias is None else bias
            return attend(q, k, v, form, mechanism=Softmax(backend=backend), **named).values

        try:
            got = outcome(ours, *tensors)
        except BackendRefused:
            continue
        ran += 1
        for one, two in zip(got, want, strict=True):
            agree(one, two, str(backend))
    q, k, v = (x.detach() for x in tensors[:3])
    form = mask if len(tensors) == 3 else tensors[3].detach()
    with torch.no_grad():
        agree(attend(q, k, v, form, mechanism=Softmax(backend=Flex(interpreted=True)), **named).values, want[0], "flex")
    return ran


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    lengths = st.sampled_from([1, 2, 5, 9, 70, 140])
    return draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])), draw(lengths), draw(lengths)


def table(g: torch.Generator, size: tuple[int, ...], draw: st.DataObject) -> Tensor:
    """A boolean tensor that broadcasts to ``size``; every query sees a key, since there SDPA's kernels differ."""
    axes = draw.draw(st.integers(2, 4), label="axes")
    shape = [draw.draw(st.sampled_from([1, n]), label="axis") for n in size[-axes:]]
    shape[-1] = size[-1]
    seen = torch.rand(shape, generator=g) < 0.5
    seen[..., 0] |= ~seen.any(-1)
    return seen


@examples(0.6)
@given(sizes(), seeds, st.data())
def test_a_boolean_tensor_is_that_of_sdpa(size: tuple[int, int, int, int], seed: int, data: st.DataObject) -> None:
    (batch, heads, queries, keys), g = size, generator(seed)
    shared = data.draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]), label="key/value heads")
    seen = table(g, size, data)
    tensors = drawn(g, batch, heads, queries, 4), drawn(g, batch, shared, keys, 4), drawn(g, batch, shared, keys, 4)
    want = outcome(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True), *tensors)
    assert on_every_backend(want, seen, *tensors) >= 4


@examples(0.6)
@given(sizes(), seeds, st.data(), st.booleans())
def test_a_float_tensor_is_that_of_sdpa(
    size: tuple[int, int, int, int], seed: int, data: st.DataObject, learned: bool
) -> None:
    (batch, heads, queries, keys), g = size, generator(seed)
    seen = table(g, size, data)
    added = torch.randn(seen.shape, generator=g, dtype=torch.float64).masked_fill(~seen, float("-inf"))
    added.requires_grad_(learned)
    tensors = (*(drawn(g, batch, heads, n, 4) for n in (queries, keys, keys)), added)
    want = outcome(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias), *tensors)
    assert on_every_backend(want, None, *tensors) >= 3


def test_a_query_that_may_attend_to_nothing_gets_zeros() -> None:
    g = generator(0)
    tensors = [drawn(g, 2, 3, 5, 4) for _ in range(3)]
    seen = torch.rand(2, 3, 5, 5, generator=g) < 0.5
    seen[1, 2, 3] = False
    for form in (seen, torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, float("-inf"))):
        for backend in backends():
            try:
                got = outcome(
                    lambda q, k, v, f=form, b=backend: attend(q, k, v, f, mechanism=Softmax(backend=b)).values, *tensors
                )
            except BackendRefused:
                continue
            assert all(x.isfinite().all() for x in got), backend
            assert not got[0][1, 2, 3].any(), backend


TABLE = torch.rand(3, 4, 140, 140, generator=generator(3)) < 0.5


def by_head(queries: int, keys: int) -> Tensor:
    """Head 1 sees everything, the others are causal: [1, 4, Q, K]."""
    return (torch.arange(4)[None, :, None, None] == 1) | torch.ones(queries, keys).tril().bool()


MODS: dict[str, tuple[Any, Callable[[int, int], Tensor]]] = {
    "pair": (lambda q, k: q >= k, lambda q, k: torch.ones(q, k).tril().bool()),
    "defaults": (lambda q, k, back=7: q - k < back, lambda q, k: torch.ones(q, k).triu(-6).bool()),
    "mask_mod": (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, lambda q, k: torch.ones(q, k).tril().bool()),
    "by row and head": (lambda b, h, q, k: TABLE[b, h, q, k], lambda q, k: TABLE[:2, :, :q, :k]),
    "by row": (lambda b, h, q, k: TABLE[b, 0, q, k], lambda q, k: TABLE[:2, :1, :q, :k]),
    "by head": (lambda b, h, q, k: (h == 1) | (q >= k), lambda q, k: by_head(q, k)),
    "by query": (lambda q, k: q < 3, lambda q, k: (torch.arange(q) < 3)[:, None].expand(q, k)),
    "text": ("causal & window(8)", lambda q, k: torch.ones(q, k).tril().triu(-7).bool()),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MODS))
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (140, 140), (5, 90)])
def test_functions_and_text(name: str, queries: int, keys: int) -> None:
    form, seen = MODS[name]
    tensors = [drawn(generator(seed), 2, 4, n, 4) for seed, n in enumerate((queries, keys, keys))]
    reference = Softmax(backend="reference")
    want = outcome(lambda q, k, v: attend(q, k, v, Edges(seen(queries, keys)), mechanism=reference).values, *tensors)
    assert on_every_backend(want, form, *tensors) >= 4


def test_a_tensor_is_added_after_the_bias_of_the_mechanism() -> None:
    g = generator(0)
    q, k, v = (drawn(g, 2, 4, 9, 4) for _ in range(3))
    added, alibi = torch.randn(2, 4, 9, 9, generator=g, dtype=torch.float64), Alibi(4)
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    want = F.scaled_dot_product_attention(q, k, v, added - alibi.slopes[:, None, None].double() * distance)
    agree(attend(q, k, v, added, mechanism=Softmax(bias=alibi)).values, want, "alibi and a tensor")


def test_tensors_with_fewer_axes_and_with_padding() -> None:
    g = generator(0)
    x = drawn(g, 5, 4)
    seen = torch.ones(5, 5).tril().bool()
    agree(attend(x, x, x, seen).values, attend(x, x, x, Causal()).values, "[Q, K]")
    x, lengths = drawn(g, 2, 3, 5, 4), Padded(torch.tensor([5, 3]), 5)
    want = attend(x, x, x, Causal(), queries=lengths).values
    agree(attend(x, x, x, seen, queries=lengths).values, want, "padded")
    agree(attend(x, x, x, lambda q, k: q >= k, queries=lengths).values, want, "padded")


@pytest.mark.parametrize(("queries", "keys"), [(3, 7), (7, 7), (1, 9), (70, 140)])
def test_causal_aligned_to_the_lower_right(queries: int, keys: int) -> None:
    """The queries are the last of the keys' tokens: FlashAttention's convention."""
    tensors = [drawn(generator(seed), 2, 4, n, 4) for seed, n in enumerate((queries, keys, keys))]
    bias = causal_lower_right(queries, keys)
    want = outcome(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias), *tensors)  # pyright: ignore[reportArgumentType]
    last = Range(queries, start=keys - queries)
    assert on_every_backend(want, Causal(), *tensors, queries=last) >= 4
    assert on_every_backend(want, lambda q, k: q >= k, *tensors, queries=last) >= 4


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (3, "a mask is a Mask such as Causal.*boolean tensor.*float tensor.*text.*function.*; int was given"),
        ([[True]], "; list was given"),
        (Causal, "the class Causal was given"),
        (torch.ones(5, 5).long(), "boolean or float, not int64; .* use mask.bool"),
        (torch.ones(4, 5).bool(), r"a mask of shape \(4, 5\) does not broadcast to .* \[2, 3, 5, 5\]"),
        (torch.ones(1, 2, 3, 5, 5).bool(), "does not broadcast"),
        (lambda q, k, b: q, "but <lambda> has 3 arguments without a default"),
        (lambda q, k: q - k, "returns a boolean tensor, but <lambda> returned int64"),
        (lambda q, k: True, "returns a boolean tensor, but <lambda> returned bool"),
        (lambda q, k: (q >= k).flatten(), "acts on each pair by itself"),
        (torch.ge, "the arguments of this .* are not known"),
        ("causal & windoe(3)", "did you mean window"),
    ],
)
def test_anything_else_is_one_sentence(mask: Any, message: str) -> None:
    x = torch.randn(2, 3, 5, 4)
    with pytest.raises(Exception, match=message) as error:
        attend(x, x, x, mask)
    assert "\n" not in str(error.value)


def test_a_tensor_needs_slots_that_count_from_zero() -> None:
    x, seen = torch.randn(1, 1, 3, 4), torch.ones(3, 3).bool()
    index = torch.arange(3)[None]
    for slots in (Range(3, start=2), Slots(index, index * 0, index)):
        with pytest.raises(ValueError, match="indexed by place in q and k"):
            attend(x, x, x, seen, queries=slots, keys=slots)


def test_masks_by_head_combine() -> None:
    seen = torch.rand(2, 4, 70, 70, generator=generator(0)) < 0.5
    tensors = [drawn(generator(seed), 2, 4, 70, 4) for seed in range(3)]
    mask = Causal() & (Edges(seen) | Window(3))
    dense = torch.ones(70, 70).tril().bool() & (seen | torch.ones(70, 70).tril().triu(-2).bool())
    want = outcome(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dense), *tensors)
    assert on_every_backend(want, mask, *tensors) >= 4
