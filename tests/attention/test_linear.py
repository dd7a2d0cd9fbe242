"""Linear attention: chunks and steps against the definition, and the definition against a double loop."""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional as F

from regard.attention import (
    Alibi,
    AnySlots,
    Causal,
    DecodeInput,
    Full,
    LayerSpec,
    Mask,
    Packed,
    Padded,
    Range,
    Slots,
    Window,
)
from regard.attention.mechanisms.chunked import CHUNK, Documents, at_once, floor
from regard.attention.mechanisms.linear import FEATURES, FeatureName, LinearAttention, LinearConfig, elu_plus_one
from regard.attention.mechanisms.performer import Performer
from regard.errors import UserError

seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.integers(1, 9), st.sampled_from([CHUNK, CHUNK + 1, 2 * CHUNK + 7, 3 * CHUNK]))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def packed(draw: st.DrawFn, rows: int, length: int) -> Packed:
    """Documents that end anywhere: at the chunks' borders, beside them, several in one chunk, one over several."""
    held = []
    for _ in range(rows):
        borders = {draw(st.integers(0, length)) for _ in range(draw(st.integers(0, 5)))}
        borders |= {draw(st.sampled_from([0, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])) for _ in range(2)}
        cuts = [0, *sorted(border for border in borders if 0 < border <= length)]
        held.append([b - a for a, b in pairwise(cuts)])
    return Packed.of(held, length)


@st.composite
def all_slots(draw: st.DrawFn, rows: int, length: int) -> AnySlots:
    kind = draw(st.sampled_from(["range", "padded", "packed", "packed", "general"]))
    if kind == "range":
        return Range(length, draw(st.integers(0, 3)))
    if kind == "padded":
        held = draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows))
        return Padded(torch.tensor(held), length)
    if kind == "packed":
        return draw(packed(rows, length))
    g = generator(draw(seeds))
    order = torch.stack([torch.randperm(length, generator=g) for _ in range(rows)])
    return Slots(order, torch.randint(-1, 2, order.shape, generator=g), order)


@st.composite
def mechanisms(draw: st.DrawFn, width: int) -> LinearAttention:
    features: FeatureName = draw(st.sampled_from(list(FEATURES)))
    if draw(st.integers(0, 3)) == 0:
        return Performer(width, draw(st.integers(1, 9))).double()
    return LinearAttention(features, normalize=features != "identity" and draw(st.sampled_from([True, True, False])))


def tensors(seed: int, batch: int, groups: int, shared: int, length: int, width: int) -> list[Tensor]:
    g = generator(seed)
    shapes = ((groups * shared, width), (groups, width), (groups, width + 1))
    made = [torch.randn(batch, heads, length, size, generator=g, dtype=torch.float64) for heads, size in shapes]
    return [x.requires_grad_() for x in made]


def double_loop(mechanism: LinearAttention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, slots: AnySlots) -> Tensor:
    """The equation, one query and one key at a time."""
    fq, fk = mechanism.of_queries(q), mechanism.of_keys(k)
    shared, length = q.shape[1] // k.shape[1], q.shape[2]
    seat = slots.at(torch.arange(slots.rows)[:, None], torch.arange(length)[None])
    order, segment = (x.expand(q.shape[0], length).tolist() for x in seat[:2])
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(length):
                top, bottom = torch.zeros_like(v[0, 0, 0]), torch.zeros_like(v[0, 0, 0, 0])
                for j in range(length):
                    if segment[b][i] != segment[b][j] or segment[b][i] < 0:
                        continue
                    if isinstance(mask, Causal) and order[b][j] > order[b][i]:
                        continue
                    alike = (fq[b, h, i] * fk[b, h // shared, j]).sum()
                    top, bottom = top + alike * v[b, h // shared, j], bottom + alike
                rows.append(top / bottom if mechanism.normalize and bottom > 0 else top)
    return torch.stack(rows).view(*q.shape[:3], v.shape[3])


def with_gradients(values: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    up = torch.randn(values.shape, generator=generator(5), dtype=values.dtype)
    return [values, *torch.autograd.grad((values * up).sum(), inputs, materialize_grads=True)]


def assert_same(got: list[Tensor], want: list[Tensor], what: str) -> None:
    for name, one, other in zip(("values", "of q", "of k", "of v"), got, want, strict=True):
        assert one.isfinite().all(), f"{what}, {name}"
        close = 1e-10 * max(1.0, other.abs().max().item())
        torch.testing.assert_close(one, other, atol=close, rtol=0, msg=lambda text, n=name: f"{what}, {n}: {text}")


@given(st.data(), seeds, st.integers(1, 2), st.integers(1, 2), st.integers(1, 5), st.sampled_from([Causal(), Full()]))
def test_the_definition_is_the_equation(
    data: st.DataObject, seed: int, groups: int, shared: int, length: int, mask: Mask
) -> None:
    mechanism = data.draw(mechanisms(2))
    slots = data.draw(all_slots(2, length))
    inputs = tensors(seed, 2, groups, shared, length, 2)
    q, k, v = inputs
    plan = mechanism.plan(mask, slots, like=q)
    got = mechanism.definition(mechanism.of_queries(q), mechanism.of_keys(k), v, plan)
    want = double_loop(mechanism, q, k, v, mask, slots)
    assert_same(with_gradients(got, inputs), with_gradients(want, inputs), "definition")


LAID_OUT = [[4 * CHUNK + 5, 20, 2 * CHUNK], [CHUNK, CHUNK - 1, 2, 3 * CHUNK], [1, 1, 6 * CHUNK]]


@pytest.mark.parametrize("mask", [Causal(), Full()])
def test_documents_over_many_chunks(mask: Mask) -> None:
    """Some end at a chunk's border, some beside it, one spans six chunks."""
    slots, mechanism = Packed.of(LAID_OUT), LinearAttention()
    inputs = tensors(1, 3, 1, 2, slots.length, 2)
    q, k, v = inputs
    plan = mechanism.plan(mask, slots, like=q)
    fq, fk = mechanism.of_queries(q), mechanism.of_keys(k)
    want = with_gradients(mechanism.definition(fq, fk, v, plan), inputs)
    assert_same(with_gradients(mechanism(q, k, v, plan).values, inputs), want, "the mechanism")
    if isinstance(mask, Causal):
        sums = at_once(elu_plus_one(q), elu_plus_one(k), F.pad(v, (0, 1), value=1.0), plan.prepared[0])
        values = sums[..., :-1] / sums[..., -1:].clamp(min=1e-200)
        assert_same(with_gradients(values, inputs), want, "all chunks at once")


@settings(max_examples=2 * settings().max_examples)
@given(st.data(), seeds, st.integers(1, 2), st.integers(1, 3), lengths, st.sampled_from([Causal(), Causal(), Full()]))
def test_every_form_equals_the_definition(
    data: st.DataObject, seed: int, groups: int, shared: int, length: int, mask: Mask
) -> None:
    """Forward and backward: what the mechanism runs here, and what a GPU or a compiler runs."""
    mechanism = data.draw(mechanisms(3))
    slots = data.draw(all_slots(2, length))
    inputs = tensors(seed, 2, groups, shared, length, 3)
    q, k, v = inputs
    plan = mechanism.plan(mask, slots, like=q)
    fq, fk = mechanism.of_queries(q), mechanism.of_keys(k)
    want = with_gradients(mechanism.definition(fq, fk, v, plan), inputs)
    assert_same(with_gradients(mechanism(q, k, v, plan).values, inputs), want, "the mechanism")
    if isinstance(mask, Causal) and not isinstance(slots, Slots):
        documents = Documents.of(slots.segment, causal=True) if isinstance(slots, Packed) else None
        sums = at_once(mechanism.of_queries(q), mechanism.of_keys(k), F.pad(v, (0, 1), value=1.0), documents)
        values = sums[..., :-1] / sums[..., -1:].clamp(min=1e-200) if mechanism.normalize else sums[..., :-1]
        if isinstance(slots, Padded):
            values = values * slots.filled()[:, None, :, None]
        assert_same(with_gradients(values, inputs), want, "all chunks at once")


@given(st.data(), seeds, st.integers(1, 3), st.lists(st.sampled_from([1, 1, 2, 5, CHUNK + 3]), min_size=1, max_size=4))
def test_steps_equal_the_full_pass(data: st.DataObject, seed: int, shared: int, cut: list[int]) -> None:
    """Each row takes in as many tokens of a step as it likes; the state stays where it is and as large as it is."""
    mechanism = data.draw(mechanisms(3))
    rows, arrival = 2, DecodeInput(None, 0)
    q, k, v = (x.detach()[..., :3] for x in tensors(seed, rows, 2, shared, sum(cut), 3))
    memory = mechanism.start(rows, 2, 10**9, 3, q)
    place, numbers = memory.sums.data_ptr(), memory.sums.numel()
    real: list[list[int]] = [[] for _ in range(rows)]
    got: list[list[Tensor]] = [[] for _ in range(rows)]
    for i, count in enumerate(cut):
        first = sum(cut[:i])
        held = data.draw(st.lists(st.integers(0, count), min_size=rows, max_size=rows))
        ahead = torch.arange(count)
        segment = torch.where(ahead < torch.tensor(held)[:, None], 0, -1)
        queries = Padded(torch.tensor(held), count) if i == 0 else Slots(ahead[None] + segment * 0, segment, segment)
        keys = None if i == 0 else Slots(*(torch.zeros(rows, 3, dtype=torch.long),) * 3)
        plan = mechanism.plan(Causal(), queries, keys, like=q)
        now = slice(first, first + count)
        out = mechanism.step(q[:, :, now], k[:, :, now], v[:, :, now], plan, memory, arrival).values
        for b, n in enumerate(held):
            real[b] += range(first, first + n)
            got[b].append(out[b, :, :n])
            assert not out[b, :, n:].any()
    assert (memory.sums.data_ptr(), memory.sums.numel()) == (place, numbers)
    for b in range(rows):
        alone = [x[b : b + 1, :, real[b]] for x in (q, k, v)]
        want = mechanism(*alone, mechanism.plan(Causal(), Range(len(real[b])), like=q)).values[0]
        torch.testing.assert_close(torch.cat(got[b], dim=1), want, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("features", [name for name in FEATURES if name != "identity"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e3])
def test_float32_stays_finite(features: FeatureName, size: float) -> None:
    """Tiny and huge inputs, rows that see nothing, and rows in which every likeness vanishes."""
    q, k, v = (size * torch.randn(2, 2, 70, 4, generator=generator(i)) for i in range(3))
    q[:, :, 3], k[:, :, :40] = -abs(q[:, :, 3]), -abs(k[:, :, :40])
    inputs = [x.requires_grad_() for x in (q, k, v)]
    slots = Padded(torch.tensor([70, 0]), 70)
    mechanism = LinearAttention(features)
    values, *found = with_gradients(mechanism(q, k, v, mechanism.plan(Causal(), slots, like=q)).values, inputs)
    assert values.isfinite().all()
    assert values.abs().max() <= v.abs().max() * 1.0001
    for x in (values, *found):
        assert x.isfinite().all()
        assert not x[1].any(), "an empty row has a value or a gradient"


@pytest.mark.parametrize("features", list(FEATURES))
def test_features_have_their_finite_differences_as_gradients(features: FeatureName) -> None:
    x = torch.randn(3, 5, generator=generator(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(FEATURES[features], x)


def test_a_small_likeness_keeps_its_digits() -> None:
    x = torch.tensor([-20.0, -60.0, 0.0, 3.0])
    torch.testing.assert_close(elu_plus_one(x), torch.tensor([math.exp(-20), math.exp(-60), 1.0, 4.0]))
    assert elu_plus_one(x)[1] > floor(torch.float32)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_the_future_changes_nothing_to_the_bit(kind: str) -> None:
    mechanism = LinearAttention() if kind == "linear" else Performer(4, 16)
    q, k, v = (torch.randn(1, 2, 150, 4, generator=generator(i)) for i in range(3))
    plan = mechanism.plan(Causal(), Range(150), like=q)
    before = mechanism(q, k, v, plan).values[:, :, :100]
    k, v = (torch.cat((x[:, :, :100], 50 * x[:, :, 100:]), dim=2) for x in (k, v))
    assert torch.equal(mechanism(q, k, v, plan).values[:, :, :100], before)


def test_half_precision_sums_are_wide() -> None:
    """4,000 equal tokens: in bfloat16 a running sum would stand still at 256."""
    q, k, v = (torch.full((1, 1, 4000, 2), x, dtype=torch.bfloat16) for x in (1.0, 1.0, 3.0))
    mechanism = LinearAttention("relu", normalize=False)
    values = mechanism(q, k, v, mechanism.plan(Causal(), Range(4000), like=q)).values
    assert values.dtype == torch.bfloat16
    assert values[0, 0, -1, 0] == torch.tensor(24_000.0).bfloat16()
    assert mechanism.start(1, 1, 8, 2, q).sums.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        under = mechanism(q.float(), k.float(), v, mechanism.plan(Causal(), Range(4000), like=q)).values
    assert torch.equal(under, values)


def test_what_it_cannot_do_it_refuses_with_the_reason() -> None:
    q = torch.randn(1, 1, 5, 2)
    with pytest.raises(UserError, match="one sum over all earlier tokens and cannot exclude some of them"):
        LinearAttention().plan(Causal() & Window(3), Range(5), like=q)
    with pytest.raises(UserError, match="no scores that Alibi positions could change"):
        LinearConfig().mechanism(LayerSpec(2, 2, 4, 8, bias=Alibi(2)))
    with pytest.raises(UserError, match=r"no weights to drop; set --model\.attention_dropout 0"):
        LinearConfig().mechanism(LayerSpec(2, 2, 4, 8, dropout=0.1))
    with pytest.raises(ValueError, match="set normalize = false"):
        LinearConfig("identity").check()


def test_one_graph_gives_what_eager_mode_gives() -> None:
    """Plan and all, over packed rows."""
    mechanism = LinearAttention()
    inputs = tensors(0, 2, 1, 2, CHUNK + 30, 3)
    slots = Packed.of([[CHUNK - 4, 20], [3, CHUNK + 25]], CHUNK + 30)

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mechanism(q, k, v, mechanism.plan(Causal(), slots, like=q)).values

    traced = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(traced(*inputs), inputs), with_gradients(mixed(*inputs), inputs), "traced")
