"""What the laws are about: random masks, slots, biases and whole calls.

Tensors are drawn through a seed, so that a failing case prints small.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, TypeVar

import hypothesis.strategies as st
import torch
from hypothesis import settings
from torch import Tensor

from regard import attention as a
from regard.attention.backends.sdpa import Structure

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 12)
lengths = st.one_of(few, few, few, st.sampled_from([65, 90, 140]))  # the long ones take several bands


def examples(share: float) -> settings:
    """So many of the profile's examples: for laws that are dear, or worth more than others."""
    return settings(max_examples=max(1, round(share * settings().max_examples)))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-5


def agree(got: Tensor, want: Tensor, what: str, terms: float = 1) -> None:
    """Equal up to rounding, relative to the greatest number at hand; never NaN.

    ``terms``: how many numbers, of size up to 1, are added up to each. Their rounding errors grow with its square root,
    also where the sum is zero.
    """
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    assert got.isfinite().all(), f"{what}: not finite"
    if got.numel():
        error = (got.double() - want.double()).abs().max().item()
        unit = max(tolerance(got.dtype), 4 * torch.finfo(got.dtype).eps * terms**0.5)
        allowed = unit * max(1.0, want.abs().max().item())
        assert error <= allowed, f"{what}: off by {error:.2e}, allowed {allowed:.2e}"


Law = TypeVar("Law", bound=Callable[..., None])


def in_fair_shares(ran: Counter[str], **least: float) -> Callable[[Law], Law]:
    """Fails the law, after all its cases, if some backend ran in less than its share: no law holds of nothing.

    The law counts its cases as ``ran["cases"]``.
    """

    def decorate(law: Law) -> Law:
        @wraps(law)
        def fair(*given: Any, **named: Any) -> None:
            ran.clear()
            law(*given, **named)
            for name, share in least.items():
                assert ran[name] >= share * ran["cases"], f"{name} ran in {ran[name]} of {ran['cases']} cases"

        return fair  # pyright: ignore[reportReturnType]

    return decorate


# Slots


@st.composite
def padded(draw: st.DrawFn, batch: int, length: int) -> a.Padded:
    held = draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch))
    return a.Padded(torch.tensor(held), length)


@st.composite
def documents(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    """Lengths of documents that fit into a row, perhaps none."""
    found = []
    for asked in draw(st.lists(st.integers(1, max(1, length)), max_size=4)):
        if sum(found) + asked <= length:
            found.append(asked)
    return tuple(found)


@st.composite
def packed(draw: st.DrawFn, batch: int, length: int) -> a.Packed:
    rows = draw(st.lists(documents(length), min_size=batch, max_size=batch))
    slots = a.Packed.of(rows, length)
    return slots if draw(st.booleans()) else slots._replace(documents=None)  # lengths known to the device only


@st.composite
def general(draw: st.DrawFn, batch: int, length: int) -> a.Slots:
    """As a cache would have them: any order, gaps, empty places, sometimes several documents."""
    g = generator(draw(seeds))
    order = torch.stack([torch.randperm(length + 4, generator=g)[:length] for _ in range(batch)])
    segment = torch.randint(0, draw(st.integers(1, 3)), order.shape, generator=g)
    segment[torch.rand(order.shape, generator=g) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = -1
    phase = draw(st.sampled_from([order, order // 2]))
    return a.Slots(order, segment, phase)


@st.composite
def slots(draw: st.DrawFn, batch: int, length: int) -> a.AnySlots:
    """Any kind; one row may serve the whole batch."""
    rows = draw(st.sampled_from([batch, batch, 1]))
    ranges = st.builds(a.Range, st.just(length), st.integers(0, 6))
    return draw(st.one_of(ranges, padded(rows, length), packed(rows, length), general(rows, length)))


def most_orders(length: int) -> int:
    """Above every order that ``slots`` may give to ``length`` slots."""
    return length + 7


# Masks


@st.composite
def labels(draw: st.DrawFn, batch: int, orders: int) -> a.Same:
    shape = draw(st.sampled_from([(orders,), (batch, orders)]))
    return a.Same(torch.randint(0, draw(st.integers(1, 4)), shape, generator=generator(draw(seeds))))


@st.composite
def edges(draw: st.DrawFn, batch: int, orders: int) -> a.Edges:
    shape = draw(st.sampled_from([(orders, orders), (batch, orders, orders)]))
    density = draw(st.sampled_from([0.1, 0.5, 0.9]))
    return a.Edges(torch.rand(shape, generator=generator(draw(seeds))) < density)


@st.composite
def edge_lists(draw: st.DrawFn, batch: int, orders: int) -> a.EdgeList:
    """As a table of edges, with repetitions and padding."""
    rows, count = draw(st.sampled_from([1, batch])), draw(st.sampled_from([0, 3, orders, orders**2]))
    low = draw(st.sampled_from([-1, 0]))
    pairs = torch.randint(low, orders, (rows, count, 2), generator=generator(draw(seeds)))
    return a.EdgeList.of(pairs, orders)


@st.composite
def blocks(draw: st.DrawFn, orders: int) -> a.Blocks:
    size = draw(st.integers(1, 5))
    count = -(-orders // size)
    return a.Blocks(torch.rand(count, count, generator=generator(draw(seeds))) < 0.5, size)


@cache
def leaves(batch: int, orders: int) -> st.SearchStrategy[a.Mask]:
    """Every kind of mask that is not made of others."""
    small = st.integers(1, 5)
    sizes = st.one_of(small, st.integers(1, orders))
    places = st.integers(0, orders - 1)
    return st.one_of(
        st.just(a.Full()),
        st.just(a.Causal()),
        st.builds(a.Window, sizes, st.integers(0, 4)),
        st.builds(a.Dilated, small, st.integers(1, 4), st.integers(0, 2)),
        st.builds(a.Strided, small),
        st.builds(a.Prefix, st.integers(0, orders)),
        st.builds(a.Global, st.lists(places, max_size=3).map(tuple)),
        labels(batch, orders),
        edges(batch, orders),
        edge_lists(batch, orders),
        blocks(orders),
        st.builds(a.Sinks, st.integers(0, 4), st.booleans()),
        st.builds(a.Chunks, sizes),
        small.flatmap(lambda stride: st.builds(a.Columns, st.just(stride), st.integers(1, stride))),
        st.builds(a.Scattered.drawn, small, st.integers(0, 3), st.integers(0, 9)),
    )


@cache
def masks(batch: int, orders: int) -> st.SearchStrategy[a.Mask]:
    """Expressions over all kinds."""

    def grown(inner: st.SearchStrategy[a.Mask]) -> st.SearchStrategy[a.Mask]:
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda pair: operator.and_(*pair)),
            two.map(lambda pair: operator.or_(*pair)),
            inner.map(operator.invert),
        )

    return st.recursive(leaves(batch, orders), grown, max_leaves=6)


@cache
def usual_masks() -> st.SearchStrategy[a.Mask]:
    """Those that fast paths know, which random expressions seldom are."""
    local = st.builds(a.Window, st.integers(1, 20))
    known = st.sampled_from([a.Full(), a.Causal(), a.Causal()])
    return st.one_of(known, known, local, local.map(lambda window: a.Causal() & window))


# Biases


@st.composite
def one_bias(draw: st.DrawFn, heads: int) -> a.Bias:
    kind = draw(st.sampled_from(["alibi", "relative", "cap"]))
    if kind == "alibi":
        return a.Alibi(heads)
    if kind == "cap":
        return a.SoftCap(draw(st.sampled_from([0.5, 2.0, 30.0])))
    bias = a.Relative(heads, draw(st.integers(0, 6)))
    torch.nn.init.normal_(bias.table, generator=generator(draw(seeds)))
    return bias


def biases(heads: int) -> st.SearchStrategy[a.Bias | None]:
    one = one_bias(heads)
    several = st.lists(one, min_size=2, max_size=3).map(lambda parts: a.Chain(*parts))
    return st.one_of(st.none(), one, several)


# Calls


@dataclass(frozen=True)
class Case:
    """One use of the operator. ``keys`` None: the queries' own tokens."""

    batch: int
    kv_heads: int
    shared: int  # query heads per key/value head
    width: int
    value_width: int
    mask: a.Mask
    queries: a.AnySlots
    keys: a.AnySlots | None
    bias: a.Bias | None
    scale: float | None
    temperature: float
    dtype: torch.dtype
    seed: int

    @property
    def key_slots(self) -> a.AnySlots:
        return self.queries if self.keys is None else self.keys

    @property
    def heads(self) -> int:
        return self.kv_heads * self.shared

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:  # q, k and v, ready for gradients
        g, keys = generator(self.seed), self.key_slots.length
        shapes = [(self.heads, self.queries.length, self.width)]
        shapes += [(self.kv_heads, keys, self.width), (self.kv_heads, keys, self.value_width)]
        made = [torch.randn(self.batch, *shape, generator=g, dtype=self.dtype) for shape in shapes]
        return tuple(x.requires_grad_() for x in made)  # pyright: ignore[reportReturnType]

    def mechanism(self, backend: str | a.Backend) -> a.Softmax:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return a.Softmax(bias=bias, scale=self.scale, temperature=self.temperature, backend=backend)


@st.composite
def cases(
    draw: st.DrawFn,
    sizes: st.SearchStrategy[int] = lengths,
    own: bool | None = None,
    biased: bool = True,
    usual: bool | None = None,
) -> Case:
    """Half of them, unless told, are usual: a mask that fast paths know, no bias, mostly over one's own tokens."""
    usual = draw(st.booleans()) if usual is None else usual
    batch, kv_heads, shared = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    count = draw(sizes)
    queries = draw(slots(batch, count))
    own = draw(st.sampled_from([True, True, False] if usual else [True, False])) if own is None else own
    keys = None if own else draw(slots(batch, draw(sizes)))
    orders = most_orders(max(count, queries.length if keys is None else keys.length))
    return Case(
        batch,
        kv_heads,
        shared,
        width=draw(st.integers(1, 8)),
        value_width=draw(st.integers(1, 8)),
        mask=draw(usual_masks() if usual else masks(batch, orders)),
        queries=queries,
        keys=keys,
        bias=draw(biases(kv_heads * shared)) if biased and not usual else None,
        scale=draw(st.sampled_from([None, None, 0.3, 1.0, -0.5, 0.0])),
        temperature=draw(st.sampled_from([1.0, 1.0, 0.7, 1.6])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(seeds),
    )


@st.composite
def structured_cases(draw: st.DrawFn, how: Structure) -> Case:
    """Cases of one of the structures that the sdpa backend passes to its kernel without a dense mask."""
    case = draw(cases(usual=True))
    batch, count = case.batch, case.queries.length
    rows = draw(st.sampled_from([batch, 1]))
    plain = st.builds(a.Range, st.just(count), st.integers(0, 6))
    uneven = padded(rows, count)
    known = st.lists(documents(count), min_size=rows, max_size=rows).map(lambda held: a.Packed.of(held, count))
    full, either = st.just(a.Full()), st.sampled_from([a.Full(), a.Causal()])
    masks = {Structure.FULL: full, Structure.PADDED: full, Structure.DOCUMENTS: either}
    queries = {Structure.FULL: plain, Structure.CAUSAL: plain, Structure.DOCUMENTS: known}
    keys = {Structure.FULL: st.none() | plain, Structure.PADDED: st.none() | plain | uneven}
    mask, own, others = masks.get(how, st.just(a.Causal())), queries.get(how, uneven), keys.get(how, st.none())
    return replace(case, mask=draw(mask), queries=draw(own), keys=draw(others))
