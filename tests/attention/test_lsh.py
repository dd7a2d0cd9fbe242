"""Hashed attention: exact attention over shared buckets, and a sorted form that loses what it says and nothing else."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from dense_kit import (
    dense,
    each_head,
    heads,
    learns_and_decodes,
    masks,
    qkv,
    raw_scores,
    rows,
    same,
    seeds,
    softmax_over,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Alibi,
    AnySlots,
    Call,
    Causal,
    Dot,
    LayerSpec,
    Mask,
    Packed,
    Padded,
    Range,
    Slots,
    SoftCap,
    Softmax,
    SoftmaxNormalizer,
)
from regard.attention.backends import reference as blocked
from regard.attention.mechanisms import lsh_tiles
from regard.attention.mechanisms.lsh import LSH, LSHConfig, factors
from regard.attention.mechanisms.lsh_tiles import tileable
from regard.errors import UserError

RAN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a test are short, and are to be cut all the same."""
    monkeypatch.setattr(blocked, "MOST", 7)
    monkeypatch.setattr(blocked, "FEWEST", 7)
    monkeypatch.setattr(lsh_tiles, "SCORES", 64)


def hashed(mechanism: LSH, x: Tensor) -> Tensor:
    """Buckets [B, H, N, R] by looking for the nearest of all directions ±r, one hash after the other."""
    numbers = torch.zeros(*x.shape[:3], mechanism.rounds, dtype=torch.long)
    for i, size in enumerate(mechanism.hashes):
        rotation: Tensor = getattr(mechanism, f"rotation_{i}")
        for r in range(mechanism.rounds):
            directions = torch.cat((rotation[r].T, -rotation[r].T))  # [size, D]
            nearest = torch.einsum("bhnd,sd->bhns", x.detach(), directions).argmax(-1)
            numbers[..., r] = numbers[..., r] * size + nearest
    return numbers


def seat(slots: AnySlots, b: int) -> tuple[list[int], list[int]]:
    """Orders and segments of one row."""
    row = torch.full((slots.length,), b if slots.rows > 1 else 0)
    found = slots.at(row, torch.arange(slots.length))
    return found.order.tolist(), found.segment.tolist()


def meetings(mechanism: LSH, q: Tensor, k: Tensor, queries: AnySlots, keys: AnySlots) -> Tensor:
    """[B, H, Q, K]: who shares a bucket in some round (and, in the sorted form, the chunk or the one before)."""
    ours, theirs = hashed(mechanism, q).tolist(), each_head(hashed(mechanism, k), q.shape[1]).tolist()
    found = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.bool)
    for b in range(q.shape[0]):
        (orders, segments), (order, segment) = seat(queries, b), seat(keys, b)
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                for j in range(k.shape[2]):
                    found[b, h, i, j] = order[j] == orders[i]
                for r in range(mechanism.rounds if segments[i] >= 0 else 0):
                    bucket = [
                        j
                        for j in sorted(range(k.shape[2]), key=order.__getitem__)
                        if segment[j] == segments[i] and theirs[b][h][j][r] == ours[b][h][i][r]
                    ]
                    if mechanism.form == "sorted":
                        passed = sum(order[j] <= orders[i] for j in bucket)
                        chunk = max(0, passed - 1) // mechanism.chunk
                        bucket = bucket[max(0, chunk - 1) * mechanism.chunk : (chunk + 1) * mechanism.chunk]
                    found[b, h, i, bucket] = True
    return found


def naive(mechanism: LSH, q: Tensor, k: Tensor, v: Tensor, mask: Mask, queries: AnySlots, keys: AnySlots) -> Tensor:
    seen = meetings(mechanism, q, k, queries, keys) & dense(mask, queries, keys, q.shape[0])[:, None]
    return softmax_over(raw_scores(q, k), seen) @ each_head(v, q.shape[1])


def made(form, buckets: int, rounds: int, chunk: int, seed: int, **options) -> LSH:
    return LSH(4, buckets, rounds, seed, form=form, chunk=chunk, **options).double()


forms = st.sampled_from(["exact", "sorted"])
buckets = st.sampled_from([2, 4, 66])


@settings(max_examples=2 * settings().max_examples)
@given(forms, rows(30), masks, heads, buckets, st.integers(1, 3), st.integers(1, 4), seeds)
def test_it_is_exact_attention_among_those_who_meet(form, held, mask, heads, buckets, rounds, chunk, seed) -> None:
    (slots, batch), mechanism = held, made(form, buckets, rounds, chunk, seed)
    q, k, v = inputs = qkv(seed, batch, heads, slots.length)
    plan = mechanism.plan(mask, slots, like=q)
    RAN[form] += 1
    RAN["tiles"] += form == "sorted" and tileable(plan, 4 * rounds * chunk)
    same(mechanism(q, k, v, plan).values, naive(mechanism, q, k, v, mask, slots, slots), inputs)


def test_the_law_above_was_about_tiles_too() -> None:
    if RAN:  # it ran in this process
        assert RAN["tiles"] >= 0.1 * RAN["sorted"], RAN


@given(rows(30), masks, heads, st.integers(1, 3), st.integers(1, 3), seeds)
def test_tiles_equal_all_pairs_with_biases_too(held, mask, heads, rounds: int, chunk: int, seed: int) -> None:
    """The two ways of the sorted form, short rows included: the same labels, tile by tile or all at once."""
    slots, batch = held
    for bias in (None, Alibi(heads[0]), SoftCap(1.0)):
        mechanism = made("sorted", 4, rounds, chunk, seed, bias=bias)
        q, k, v = inputs = qkv(seed, batch, heads, slots.length)
        plan = mechanism.plan(mask, slots, like=q)
        if not tileable(plan, 0):
            return
        call = Call(q, k, v, plan, Dot(), SoftmaxNormalizer(), mechanism.bias)
        labels = mechanism.labels(q, k, plan)
        tiled = lsh_tiles.mix_tiles(call, labels, 4, chunk)
        same(tiled, mechanism(q, k, v, plan._replace(same_tokens=False)).values, inputs)


@pytest.mark.parametrize("slots", [Range(60), Padded(torch.tensor([60, 31]), 60), Packed.of([[30, 30], [60]])])
@pytest.mark.parametrize("chunk", [1, 5, 6, 9])
def test_there_are_never_more_tiles_than_room_was_made_for(slots: AnySlots, chunk: int) -> None:
    """One full bucket of many chunks, each asked by one query, and one that is empty: many tiles are nearly so."""
    mechanism = made("sorted", 2, 1, chunk, 0)
    k = torch.ones(2, 1, 60, 4, dtype=torch.float64)
    q = -k.repeat(1, 2, 1, 1)
    q[:, :, ::chunk] *= -1
    plan = mechanism.plan(Causal(), slots, like=q)
    work = lsh_tiles.LSHRounds(Call(q, k, k, plan, Dot(), SoftmaxNormalizer()), mechanism.labels(q, k, plan), 2, chunk)
    assert work.sort(0).key.shape[1] <= work.most(120, 60)


@given(forms, rows(12), rows(12), masks, heads, seeds)
def test_keys_may_be_others(form, held, others, mask, heads, seed: int) -> None:
    (slots, batch), (keys, _) = held, others
    if keys.rows not in (1, batch):
        keys = Range(keys.length)
    mechanism = made(form, 4, 2, 2, seed)
    q, (_, k, v) = qkv(seed, batch, heads, slots.length)[0], qkv(seed + 1, batch, heads, keys.length)
    if form == "sorted" and isinstance(keys, Slots) and mask.reach().back is not None:
        with pytest.raises(UserError, match="overwritten them; set form = exact"):
            mechanism.plan(mask, slots, keys, like=q)
        return
    got = mechanism(q, k, v, mechanism.plan(mask, slots, keys, like=q)).values
    same(got, naive(mechanism, q, k, v, mask, slots, keys), [q, k, v])


@pytest.mark.parametrize("buckets", [2, 16, 66, 1024])
def test_a_bucket_is_of_one_token_alone_and_not_of_its_length(buckets: int) -> None:
    mechanism = made("exact", buckets, 3, 4, 0)
    (x,) = (y.detach() for y in qkv(0, 2, (2, 2), 50)[:1])
    found = mechanism.buckets(x)
    assert torch.equal(found, hashed(mechanism, x).transpose(2, 3))
    assert torch.equal(mechanism.buckets(x[:1, :, 7:9] * 3), found[:1, :, :, 7:9])
    assert 0 <= found.min() <= found.max() < math.prod(mechanism.hashes)
    assert buckets <= math.prod(factors(buckets)) <= 1.25 * buckets


@pytest.mark.parametrize("form", ["exact", "sorted"])
def test_the_future_is_nowhere_not_even_in_the_chunks(form) -> None:
    """The paper's chunks move with the number of later tokens; these do not."""
    mechanism = made(form, 4, 2, 2, 0)
    q, k, v = (x.detach() for x in qkv(0, 1, (2, 2), 60))
    early = mechanism(q, k, v, mechanism.plan(Causal(), Range(60), like=q)).values[:, :, :40]
    for x in (q, k, v):
        x[:, :, 40:] = torch.randn_like(x[:, :, 40:])
    late = mechanism(q, k, v, mechanism.plan(Causal(), Range(60), like=q)).values[:, :, :40]
    torch.testing.assert_close(late, early, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["exact", "sorted"])
def test_neither_padding_nor_other_documents_change_an_answer(form) -> None:
    mechanism = made(form, 2, 1, 3, 0)
    q, k, v = qkv(0, 2, (2, 1), 40)
    padded = mechanism(q, k, v, mechanism.plan(Causal(), Padded(torch.tensor([25, 40]), 40), like=q)).values
    packed = mechanism(q, k, v, mechanism.plan(Causal(), Packed.of([[15, 25], [40]]), like=q)).values
    for got, b, piece in (
        (padded, 0, slice(25)),
        (packed, 0, slice(15)),
        (packed, 0, slice(15, 40)),
        (packed, 1, slice(40)),
    ):
        cut = [x[b : b + 1, :, piece] for x in (q, k, v)]
        alone = mechanism(*cut, mechanism.plan(Causal(), Range(cut[0].shape[2]), like=q)).values
        torch.testing.assert_close(got[b : b + 1, :, piece], alone, rtol=0, atol=1e-12)
    assert not padded[0, :, 25:].any()


def test_large_chunks_lose_nothing() -> None:
    q, k, v = qkv(0, 1, (2, 2), 80)
    exact, chunked = made("exact", 8, 2, 1, 0), made("sorted", 8, 2, 40, 0)
    plan = exact.plan(Causal(), Range(80), like=q)
    call = Call(q, k, v, plan, Dot(), SoftmaxNormalizer())
    labels = chunked.labels(q, k, plan)  # no bucket has more than two chunks
    same(lsh_tiles.mix_tiles(call, labels, 8, 40), exact(q, k, v, plan).values, [q, k, v])


def test_more_rounds_err_less() -> None:
    """Over seeds, each doubling of the rounds lowers the mean error, by more than three of its standard errors."""
    budgets, losses = (1, 2, 4, 8, 16), []
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        k = torch.nn.functional.normalize(torch.randn(1, 1, 64, 16, generator=g), dim=-1)
        q = 8 * 4 * torch.nn.functional.normalize(k.flip(2) + 0.05 * torch.randn(k.shape, generator=g), dim=-1)
        v, plain = torch.randn(k.shape, generator=g), Softmax()
        want = plain(q, k, v, plan := plain.plan(Causal(), Range(64), like=q)).values
        found = [LSH(16, 8, rounds, seed)(q, k, v, plan).values for rounds in budgets]
        losses.append([(got - want).square().mean().sqrt().item() for got in found])
    table = torch.tensor(losses)
    gains = table[:, :-1] - table[:, 1:]
    assert (gains.mean(0) > 3 * gains.std(0) / len(table) ** 0.5).all(), table.mean(0)


@pytest.mark.parametrize("form", ["exact", "sorted"])
def test_a_model_decodes_as_it_reads_and_learns(form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsh_tiles, "SCORES", 2**20)
    learns_and_decodes(LSHConfig(buckets=4, rounds=2, chunk=2, form=form))


def test_rotations_come_from_the_seed_and_travel_with_no_file() -> None:
    config, sizes = LSHConfig(seed=3), LayerSpec(2, 2, 8, 256)
    one, two, other = config.mechanism(sizes), config.mechanism(sizes), LSHConfig(seed=4).mechanism(sizes)
    assert torch.equal(one.rotation_0, two.rotation_0)  # pyright: ignore[reportArgumentType]
    assert not torch.equal(one.rotation_0, other.rotation_0)  # pyright: ignore[reportArgumentType]
    assert not one.state_dict()
    assert one.hashes == (4,), "256 tokens in chunks of 64"


def test_dropout_keeps_the_mean() -> None:
    for form in ("exact", "sorted"):
        mechanism = made(form, 2, 2, 1, 0, dropout=0.3)
        q, k, v = (x.detach() for x in qkv(0, 1, (1, 1), 12))
        plan = mechanism.plan(Causal(), Range(12), like=q)
        want = mechanism.eval()(q, k, v, plan).values
        mechanism.train()
        torch.manual_seed(0)
        draws = torch.stack([mechanism(q, k, v, plan).values for _ in range(100)])
        assert ((draws.mean(0) - want).abs() <= 5 * draws.std(0) / 100**0.5 + 1e-12).all()
        assert (draws.std(0) > 0).all(), "the first token, which sees only itself, too"


def test_a_compiler_can_trace_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsh_tiles, "SCORES", 2**20)
    mechanism = LSH(4, 4, 2, form="sorted", chunk=2)
    q, k, v = (torch.randn(1, 2, 20, 4, requires_grad=True) for _ in range(3))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mechanism(q, k, v, mechanism.plan(Causal(), Range(20), like=q)).values

    want = torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v))
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for one, two in zip(torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v)), want, strict=True):
        torch.testing.assert_close(one, two)
