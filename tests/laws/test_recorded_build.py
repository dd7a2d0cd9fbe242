"""Every registered model is built shard by shard with the bits of its constructor, and without memory for all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from build_ranks import LOSSES
from live_storages import LiveStorages
from model_kit import MODELS
from torch import Tensor

from forked_ranks import run_ranks
from regard.parallel.replay import OperationReplay
from regard.parallel.sharded_build import fill, named_tensors, recorded


def ties(tensors: dict[str, Tensor]) -> set[frozenset[str]]:
    """The names of each tensor."""
    return {frozenset(name for name, x in tensors.items() if x is one) for one in tensors.values()}


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_those_of_the_constructor(name: str) -> None:
    torch.manual_seed(3)
    plain = MODELS[name].build()
    torch.manual_seed(3)
    model, initial = recorded(lambda given: MODELS[name].build())
    assert not initial.reason
    assert all(x.is_meta for x in named_tensors(model).values())
    fill(model, initial, torch.device("cpu"))
    ours, theirs = named_tensors(model), named_tensors(plain)
    assert list(ours) == list(theirs)
    assert ties(ours) == ties(theirs)
    for key, x in ours.items():
        y = theirs[key]
        assert (x.dtype, x.stride(), x.requires_grad) == (y.dtype, y.stride(), y.requires_grad), key
        assert torch.equal(x, y), key


def test_one_tensor_is_held_at_a_time() -> None:
    for name in ("gpt", "gpt experts", "gpt s4d", "transformer", "efficientnet"):
        model, initial = recorded(lambda given, name=name: MODELS[name].build())
        assert initial.recorder is not None
        recorder, largest = initial.recorder, max(x.nbytes for x in named_tensors(model).values())
        with LiveStorages() as live:
            OperationReplay(recorder.operations, recorder.sizes, initial.places).run(lambda name, whole: None)
        assert 0 < live.peak <= 1.1 * largest, name


SHARDED = {"few": [*LOSSES, "gpt s4d", "gpt lsh", "encoder bert", "signal log-mel"], "every": [*MODELS]}


@pytest.mark.parametrize("names", [SHARDED["few"], pytest.param(SHARDED["every"], marks=pytest.mark.slow)], ids=SHARDED)
def test_two_ranks_hold_their_shards_and_one_tensor(tmp_path: Path, names: list[str]) -> None:
    run_ranks(Path(__file__).with_name("build_ranks.py"), 2, tmp_path, *names)
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]
    assert {path.name: path.read_text() for path in tmp_path.glob("*.error")} == {}
