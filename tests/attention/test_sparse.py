"""Sparse attention is exact: every pattern equals the reference, forward and backward, and never builds N×N."""

from __future__ import annotations

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from sparse_kit import KINDS, PATTERNS, slots_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard import attention as a
from regard.attention.backends import flex as flex_backend
from regard.attention.backends.flex import Flex

N, HEADS, GROUPS, WIDTH = 200, 4, 2, 5
BIASES = {
    "none": lambda: None,
    "alibi": lambda: a.Alibi(HEADS),
    "relative": lambda: a.Relative(HEADS, 6),
    "cap": lambda: a.Chain(a.Relative(HEADS, 4), a.SoftCap(3.0)),
}


def tensors(length: int = N, grad: bool = True, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    made = [torch.randn(2, heads, length, WIDTH, generator=g, dtype=dtype) for heads in (HEADS, GROUPS, GROUPS)]
    return [x.requires_grad_(grad) for x in made]


def some_bias(name: str) -> a.Bias | None:
    bias = BIASES[name]()
    if bias is not None:
        for parameter in bias.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
        bias = bias.double()
    return bias


def outcome(backend: str, mask: a.Mask, slots: a.AnySlots, bias: a.Bias | None, compiled: bool = False) -> list[Tensor]:
    """Values, and the gradients of q, k, v and the bias."""
    mechanism, inputs = a.Softmax(bias=bias, backend=backend), tensors(slots.length)

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mechanism(q, k, v, mechanism.plan(mask, slots, like=q)).values

    values = (torch.compile(mixed, backend="aot_eager", fullgraph=True) if compiled else mixed)(*inputs)
    upstream = torch.randn(values.shape, generator=torch.Generator().manual_seed(3), dtype=values.dtype)
    learned = [] if bias is None else list(bias.parameters())
    return [
        values,
        *torch.autograd.grad(values, [*inputs, *learned], upstream, allow_unused=True, materialize_grads=True),
    ]


def same(got: list[Tensor], want: list[Tensor]) -> None:
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-11)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", [*KINDS, "later"])
def test_banded_equals_the_reference(pattern: str, kind: str) -> None:
    if pattern == "blocks" and kind == "later":
        mask: a.Mask = a.Blocks(torch.ones(20, 20, dtype=torch.bool).tril(), 16)
    else:
        mask = PATTERNS[pattern]
    slots = slots_of(kind, N)
    for bias in ("none", "cap") if kind == "range" else ("none", "relative") if kind == "packed" else ("alibi",):
        made = some_bias(bias)
        same(outcome("banded", mask, slots, made), outcome("reference", mask, slots, made))


FOLLOWED = [
    (a.Causal() & (a.Window(4) | a.Strided(3)), "packed"),
    pytest.param(PATTERNS["fixed"], "range", marks=pytest.mark.slow),
    pytest.param(PATTERNS["window"], "padded", marks=pytest.mark.slow),
    pytest.param(PATTERNS["nothing"], "range", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mask", "kind"), FOLLOWED)
def test_a_compiler_can_follow_it(mask: a.Mask, kind: str) -> None:
    slots, bias = slots_of(kind, 132), some_bias("relative")
    same(outcome("banded", mask, slots, bias, compiled=True), outcome("reference", mask, slots, bias))
    torch.compiler.reset()


def test_queries_that_begin_elsewhere_keep_their_residue() -> None:
    """Keys from 0, queries from 67: classes modulo the stride have to meet by order, not by index."""
    mask = PATTERNS["strided"]
    q, k, v = tensors()
    found = [a.attend(q[:, :, :133], k, v, mask, queries=a.Range(133, start=67), keys=a.Range(N), mechanism=m).values
             for m in (a.Softmax(backend="banded"), a.Softmax(backend="reference"))]  # fmt: skip
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_flex_equals_the_reference(pattern: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, interpreted: regrouped like a GPU would do it for longer texts."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex_backend, "WIDE", 50)
    mask, slots, bias = PATTERNS[pattern], slots_of(kind, N), some_bias("relative")
    q, k, v = tensors(grad=False)
    with torch.no_grad():
        found = [a.attend(q, k, v, mask, queries=slots, mechanism=a.Softmax(bias=bias, backend=backend)).values
                 for backend in (Flex(interpreted=True), "reference")]  # fmt: skip
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_regrouping_leaves_a_stride_little_to_read() -> None:
    """Window 16 and every 16th of 4096: a band, and 16 texts of 256 tokens; not a triangle of 4096."""
    mechanism = a.Softmax(backend="banded")
    plan = mechanism.plan(PATTERNS["strided"], a.Range(4096), like=torch.zeros(1))
    assert plan.backend == "banded"
    near, far = (sum(tile.elements for tile in part) for part in plan.prepared)
    assert near == 4096 * 128 - 64 * 64
    assert far < 4096 * 4096 / 16


# Nothing of N×N is made


class Largest(TorchDispatchMode):
    """The largest tensor that any operator made inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.maker = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, Tensor) and made.untyped_storage().nbytes() // made.element_size() > self.elements:
                self.elements = made.untyped_storage().nbytes() // made.element_size()
                self.maker = f"{func} {tuple(made.shape)}"
        return out


LONG = 4096
SPARSE = [name for name in PATTERNS if name not in ("causal", "nothing", "blocks")]


@pytest.mark.parametrize("pattern", [*SPARSE, "documents"])
@pytest.mark.parametrize("bias", ["none", "relative"])
def test_no_tensor_grows_with_the_square(pattern: str, bias: str) -> None:
    """Planning, forward and backward, one head: no tensor holds a quarter of the pairs."""
    mask, slots = (
        (a.Causal(), a.Packed.of([[512] * 8])) if pattern == "documents" else (PATTERNS[pattern], a.Range(LONG))
    )
    mechanism = a.Softmax(bias=a.Relative(1, 6) if bias == "relative" else None)
    q, k, v = (torch.randn(1, 1, LONG, 8, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        plan = mechanism.plan(mask, slots, like=q)
        mechanism(q, k, v, plan).values.sum().backward()
    assert plan.backend == ("sdpa" if pattern == "documents" and bias == "none" else "banded")
    assert largest.elements < LONG * LONG / 4, largest.maker


@pytest.mark.parametrize("pattern", SPARSE)
def test_a_block_layout_is_made_of_blocks(pattern: str) -> None:
    """The layout of 32,768 tokens for a GPU: nothing larger than the tokens or the blocks squared."""
    with Largest() as largest:
        Flex().prepare(a.Plan(PATTERNS[pattern], a.Range(2**15), a.Range(2**15), True), torch.device("cpu"))
    assert largest.elements <= 4 * (2**15 // 128) ** 2, largest.maker


# Dropout


def test_dropout_is_drawn_again_in_the_backward_pass() -> None:
    """Numerical and written-out gradients agree for the same draw; another draw differs; the mean is what it was."""
    mechanism = a.Softmax(dropout=0.3, backend="banded")
    plan = mechanism.plan(a.Causal() & a.Window(5), a.Range(9), like=torch.zeros(1))
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 3, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def mixed(*given: Tensor) -> Tensor:
        torch.manual_seed(4)
        return mechanism(*given, plan).values

    assert torch.autograd.gradcheck(mixed, (q, k, v))
    torch.manual_seed(5)
    with torch.no_grad():
        draws = torch.stack([mechanism(q, k, v, plan).values for _ in range(400)])
        assert not torch.equal(draws[0], draws[1])
        mechanism.eval()
        wanted = mechanism(q, k, v, plan).values
    assert ((draws.mean(0) - wanted).abs() <= 5 * draws.std(0) / 400**0.5 + 1e-12).all()
