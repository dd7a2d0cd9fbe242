"""train | validation | test: every token belongs to one part, and is a target of that part only."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import TextConfig
from regard.data.base import Data
from regard.data.split import split
from regard.errors import UserError

TEXT = "".join(chr(0x100 + i) for i in range(300))  # every character once: a token is its own position
shares = st.floats(0, 0.5) | st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("split")


@pytest.fixture(scope="module")
def config(folder):
    path = folder / "numbered.txt"
    path.write_text(TEXT, encoding="utf-8")
    return TextConfig(path=str(path))


@given(total=st.integers(0, 10**12), validation=shares, test=shares)
def test_the_parts_cover_everything_in_order(total, validation, test):
    parts = split(total, validation, test)
    assert parts.train.start == 0
    assert parts.train.stop == parts.validation.start <= parts.validation.stop == parts.test.start
    assert parts.test.stop == total
    assert all(part.size >= 0 for part in parts)
    assert (parts.validation.size == 0) or validation
    assert (parts.test.size == 0) or test
    assert abs(parts.test.size - total * test) <= 1 + total * 1e-15
    assert abs(parts.validation.size - total * validation) <= 1 + total * 1e-15


def test_decimal_shares_are_exact():
    sizes = [part.size for part in split(100_000_000, 0.05, 0.05)]
    assert sizes == [90_000_000, 5_000_000, 5_000_000]
    assert [part.size for part in split(10, 0.9, 0.0)] == [1, 9, 0]  # 10 * (1 - 0.9) is less than 1 in binary


@given(
    validation=shares,
    test=shares,
    context=st.integers(1, 30),
    size=st.integers(1, 5),
    world=st.integers(1, 3),
    seed=st.integers(0, 2**64),
    position=st.integers(0, 2**40),
)
def test_no_token_is_a_target_of_two_parts(config, folder, validation, test, context, size, world, seed, position):
    config = dataclasses.replace(config, validation=validation, test=test)
    parts = split(len(TEXT), validation, test)
    too_small = (validation and not parts.validation.targets) or (test and not parts.test.targets)
    if validation + test >= 1 or parts.train.size <= context or too_small:
        with pytest.raises((UserError, ValueError)):
            config.build(context, folder / "cache")
        return
    data = config.build(context, folder / "cache")
    assert isinstance(data, Data)

    trained = [data.batch(position, seed=seed, rank=rank, world=world, size=size) for rank in range(world)]
    again = config.build(context, folder / "cache")  # made anew, and asked in another order
    for rank in reversed(range(world)):
        again.batch(position + 1, seed=seed, rank=rank, world=world, size=size)
        same = again.batch(position, seed=seed, rank=rank, world=world, size=size)
        assert torch.equal(same.inputs, trained[rank].inputs)
        assert torch.equal(same.targets, trained[rank].targets)
    for batch in trained:
        assert batch.inputs.min() >= 0
        assert batch.targets.max() < parts.train.stop

    for part, batches in ((parts.validation, data.validation_batches), (parts.test, data.test_batches)):
        ranks = [list(batches(size, rank=rank, world=world)) for rank in range(world)]
        assert len({len(of_rank) for of_rank in ranks}) == 1
        counted, read = [], []
        for batch in (batch for of_rank in ranks for batch in of_rank):
            assert batch.inputs.shape == batch.targets.shape == (size, context)
            keep = batch.targets >= 0
            counted += batch.targets[keep].tolist()
            read += batch.inputs[keep].tolist()
        assert sorted(counted) == list(range(part.start + 1, part.stop))
        assert all(part.start <= token < part.stop for token in read)
    assert data.validation_count == parts.validation.targets
    assert data.test_count == parts.test.targets


def test_by_default_there_is_no_test_part(config, folder):
    data = config.build(8, folder / "cache")
    assert list(data.test_batches(4)) == []
    assert data.test_count == 0


def test_too_little_for_a_test(config, folder):
    with pytest.raises(UserError, match=r"the test part of .* has 1 tokens, too few .* --data\.test"):
        dataclasses.replace(config, test=0.001).build(8, folder / "cache")
