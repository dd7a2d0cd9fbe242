"""Batches of signals: padded, cut, changed, and divided between ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.base import IGNORE_INDEX
from regard.data.signals.arrays import Signals
from regard.data.signals.data import SignalChanges, SignalData, cut, faster
from regard.errors import UserError

LENGTHS = [5, 9, 3, 7, 4, 8, 6]


def signals(lengths: list[int], seed: int = 0) -> Signals:
    random = np.random.default_rng(seed)
    return Signals.of([random.normal(size=(n, 2)).astype(np.float32) for n in lengths], [n % 2 for n in lengths])


def data(lengths: list[int] = LENGTHS, longest: int | None = None, **changes: float) -> SignalData:
    parts = (signals(lengths), signals([4, 6], 1), signals([10], 2))
    return SignalData(parts, ("even", "odd"), name="test", longest=longest, changes=SignalChanges(**changes))  # type: ignore[arg-type]


def test_padded_to_the_longest() -> None:
    given = data()
    batch = next(given.validation_batches(2))
    assert given.shape == (10, 2)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [4, 6]
    assert batch.inputs.shape == (2, 6, 2)
    assert not batch.inputs[0, 4:].any()
    torch.testing.assert_close(batch.inputs[0, :4], torch.from_numpy(given.parts["validation"].values[0]))  # type: ignore[arg-type]
    assert batch.targets.tolist() == [[0], [0]]
    assert given.frequencies.tolist() == [3, 4]


def test_equal_lengths_need_no_lengths() -> None:
    part = signals([6] * 4)
    given = SignalData((part, part, part), ("a",), name="test")
    assert given.batch(0, seed=1, size=2).lengths is None
    assert not given.dynamic_shapes


def test_texts_are_padded_with_ignored_targets() -> None:
    part = Signals(signals([4, 4]).values, (np.array([1, 2, 3]), np.array([], np.int64)))
    batch = next(SignalData((part, part, part), (), name="test").validation_batches(2))
    assert batch.targets.tolist() == [[1, 2, 3], [IGNORE_INDEX] * 3]


def test_samples_of_16_bits() -> None:
    part = Signals.of([np.array([[-(2**15)], [2**14]], np.int16)], [0])
    batch = SignalData((part, part, part), ("a",), name="test").batch(0, seed=1, size=1)
    assert batch.inputs[0, :, 0].tolist() == [-1.0, 0.5]


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_ranks_divide_the_batch(longest: int, step: int, world: int, change: bool) -> None:
    given = data(longest=longest, **({"crop": True, "speed": 0.2, "gain": 0.5} if change else {}))
    whole = given.batch(step, seed=3, size=2 * world)
    for rank in range(world):
        part = given.batch(step, seed=3, rank=rank, world=world, size=2)
        width = part.inputs.shape[1]
        torch.testing.assert_close(part.inputs, whole.inputs[rank::world, :width], rtol=0, atol=0)
        assert not whole.inputs[rank::world, width:].any()
        torch.testing.assert_close(part.targets, whole.targets[rank::world], rtol=0, atol=0)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 9))
def test_grouped_by_length_every_signal_occurs_once_in_an_epoch(count: int, size: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(5, 200, count).tolist()
    part = Signals.of([np.full((n, 1), k, np.float32) for k, n in enumerate(lengths)], [0] * count)
    given = SignalData((part, part, part), ("a",), name="test", group_by_length=True)
    steps = -(-3 * count // size)
    batches = [given.batch(step, seed=seed, size=size) for step in range(steps)]
    order = [int(row[0, 0]) for batch in batches for row in batch.inputs][: 3 * count]
    for epoch in range(3):
        assert sorted(order[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_grouped_by_length_a_batch_has_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(100, 1000, 203).tolist()
    part = signals(lengths)

    def padding(group_by_length: bool) -> float:
        given = SignalData((part, part, part), ("a", "b"), name="test", group_by_length=group_by_length)
        batches = [given.batch(step, seed=1, size=8) for step in range(100)]
        total = sum(batch.inputs.shape[0] * batch.inputs.shape[1] for batch in batches)
        assert len({batch.inputs.shape[1] for batch in batches[:10]}) > 5  # long and short ones in turn
        return 1 - sum(int(batch.lengths.sum()) for batch in batches) / total  # type: ignore[union-attr]

    assert padding(True) < 0.1 < 0.3 < padding(False)


def test_crop_and_speed() -> None:
    signal = np.arange(10, dtype=np.float32)[:, None]
    assert cut(signal, 4, 0.5)[:, 0].tolist() == [3, 4, 5, 6]
    assert cut(signal, 20, 0.5).shape == (10, 1)
    assert faster(signal, 2.0)[:, 0].tolist() == [0, 2, 4, 6, 8]
    batch = data(longest=4, crop=True).batch(0, seed=1, size=7)
    assert batch.inputs.shape == (7, 4, 2)


def test_nothing_left() -> None:
    with pytest.raises(UserError, match="no signal"):
        SignalData((signals([]), signals([3]), signals([])), ("a",), name="test")


def test_content_decides_the_fingerprint() -> None:
    assert data().sha256 == data().sha256
    assert data().sha256 != data([*LENGTHS[:-1], 7]).sha256
