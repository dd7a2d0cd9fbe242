"""Batches of pairs: a pure function of (seed, position, rank), each held-out pair once, little padding."""

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairs_kit import both, numbers_config, same

from regard.data import Data, Specials
from regard.data.base import IGNORE_INDEX
from regard.data.translation.length_buckets import LengthBuckets
from regard.errors import UserError

CONTEXT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def config(folder):
    return numbers_config(folder)


@pytest.fixture(scope="module")
def data(config, folder):
    return config.build(CONTEXT, folder / "cache")


def texts(data, batch) -> list[tuple[str, str]]:
    """What a batch says, read back from its tokens; every mark is where it should be."""
    pad, begin, end = data.specials
    read = []
    for source, length, inputs, targets in zip(*(tensor.tolist() for tensor in batch), strict=True):
        counted = [token for token in targets if token != IGNORE_INDEX]
        assert targets == counted + [IGNORE_INDEX] * (len(targets) - len(counted))
        assert source[length - 1] == end
        assert source[length:] == [pad] * (len(source) - length)
        assert inputs == [begin, *counted[:-1]] + [pad] * (len(inputs) - len(counted))
        whole = counted[-1] == end
        read.append(
            (data.tokenizer.decode(source[: length - 1]), data.tokenizer.decode(counted[:-1] if whole else counted))
        )
    return read


def test_what_it_is(data):
    as_others_see_it: Any = data
    assert isinstance(as_others_see_it, Data)
    assert data.dynamic_shapes
    assert data.specials == Specials.after(data.tokenizer.size)
    assert data.vocabulary == data.tokenizer.size + 3
    assert data.encode_source("one two")[-1] == data.specials.end
    assert data.tokenizer.decode(data.encode_source("one two")[:-1]) == "one two"
    everything = collections.Counter(both(data.train) + both(data.validation) + both(data.test))
    assert sum(everything.values()) == len(everything)
    assert not set(data.train.groups) & set(data.validation.groups)
    assert not set(data.train.groups + data.validation.groups) & set(data.test.groups)
    assert 35 <= data.validation.count <= 45


@given(
    seed=st.integers(-(2**40), 2**70),
    epoch=st.integers(0, 2**50),
    world=st.integers(1, 5),
    size=st.integers(CONTEXT, 999),
)
def test_an_epoch_has_every_pair_once(data, seed, epoch, world, size):
    steps, seen = data.epoch(size, world), []
    for step in range(steps):
        rows = []
        for rank in range(world):
            batch = data.batch(epoch * steps + step, seed=seed, rank=rank, world=world, size=size)
            assert batch.source.dtype == batch.source_lengths.dtype == batch.inputs.dtype == batch.targets.dtype
            # A part of at most size * world tokens, and at most one pair more than the others.
            assert max(batch.source.numel(), batch.targets.numel()) <= size + (CONTEXT if world > 1 else 0)
            rows.append(len(batch.source))
            if (batch.targets != IGNORE_INDEX).any():
                seen += texts(data, batch)
        assert max(rows) - min(rows) <= 1  # equal shares
    assert sorted(seen) == sorted(both(data.train))


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**63),
    rank=st.integers(0, 2),
    size=st.integers(CONTEXT, 500),
)
def test_a_batch_is_a_pure_function(config, data, folder, seed, position, rank, size):
    other = config.build(CONTEXT, folder / "cache")
    data.batch(position + 7, seed=seed + 1, size=size)
    asked: dict[str, Any] = {"seed": seed, "rank": rank, "world": 3, "size": size}
    assert same(data.batch(position, **asked), other.batch(position, **asked))


def test_the_same_batches_on_every_day():
    """Pinned: a change here makes old runs impossible to resume."""
    sources = np.arange(60) % 7 + 1
    buckets = LengthBuckets(sources, sources[::-1])
    assert buckets.rows(17, seed=1, rank=0, world=1, size=40).tolist() == [6, 27, 20, 41, 55]
    assert buckets.rows(17, seed=1, rank=1, world=2, size=40).tolist() == [25, 46, 27, 6, 41]


def test_epochs_and_seeds_differ(data):
    steps = data.epoch(256)
    epochs = [
        [texts(data, data.batch(epoch * steps + step, seed=seed, size=256)) for step in range(steps)]
        for epoch, seed in ((0, 0), (1, 0), (0, 1))
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < steps / 4
        assert {tuple(sorted(batch)) for batch in epochs[one]} != {tuple(sorted(batch)) for batch in epochs[other]}


def test_little_is_padding(data):
    batches = [data.batch(step, seed=0, size=512) for step in range(data.epoch(512))]
    counted = sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches)
    assert counted / sum(batch.targets.numel() for batch in batches) > 0.85
    assert len({len(batch.source) for batch in batches}) > 2


@given(
    world=st.integers(1, 5),
    size=st.integers(1, 400),
    context=st.integers(4, 40),
    part=st.sampled_from(["validation", "test"]),
)
def test_held_out_pairs_are_counted_once(config, folder, world, size, context, part):
    data = config.build(context, folder / "cache")
    ranks = [list(getattr(data, f"{part}_batches")(size, rank=rank, world=world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [
        pair
        for batches in ranks
        for batch in batches
        if (batch.targets != IGNORE_INDEX).any()
        for pair in texts(data, batch)
    ]
    expected = []
    for source, target in both(getattr(data, part)):
        cut = [
            data.tokenizer.decode(data.tokenizer.encode(side)[: context - short])
            for side, short in ((source, 1), (target, 0))
        ]
        expected.append(tuple(cut))
    assert sorted(seen) == sorted(expected)
    counted = sum(int((batch.targets != IGNORE_INDEX).sum()) for batches in ranks for batch in batches)
    assert counted == getattr(data, f"{part}_count")
    for batch in (batch for batches in ranks for batch in batches):
        assert batch.source.shape[1] <= context
        assert batch.targets.shape[1] <= context
        assert len(batch.source) == 1 or batch.targets.numel() <= size + (context if world > 1 else 0)


def test_long_pairs_are_not_trained_on_and_that_is_said(config, folder, data, capsys):
    cut = config.build(8, folder / "cache")
    said = capsys.readouterr().err.splitlines()
    left = data.train.count - cut.train.count
    assert left > 20
    assert f"{left:,} of {data.train.count:,} pairs are longer than 8 tokens and not trained on" in said[0]
    assert "held-out pairs are longer than 8 tokens and truncated" in said[1]
    assert len(said) == 2
    assert cut.smallest_batch <= 8
    assert both(cut.validation) == both(data.validation)
    with pytest.raises(UserError, match="fits into a context of 2 tokens; the shortest has 3"):
        config.build(2, folder / "cache")
    with pytest.raises(UserError, match=r"batch of 9 tokens is too small .* --data\.batch to \d\d"):
        dataclasses.replace(config, batch=9).build(CONTEXT, folder / "cache")
