"""Lanes: logical ranks that a process runs one after another."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_kit import experiment, start

from regard.errors import UserError
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.tasks import ContrastiveConfig
from regard.train import TrainConfig
from regard.train.engine import Engine
from regard.train.lanes import with_lanes
from regard.train.prepare import prepare


def engine(text: Path, world: World, lanes: int | None) -> Engine:
    wanted = experiment(text, lanes=lanes, accumulate=2)
    data = wanted.data.build(wanted.model.context)
    return Engine(replace(wanted, model=wanted.model_for(data)), data, world)


def test_lanes_take_the_batches_of_as_many_ranks(text):
    one, ranks = engine(text, World(), 4), [World(rank, 4, layout=Layout().of(4)) for rank in range(4)]
    data, seed, size = one.data, one.experiment.seed, one.experiment.data.batch
    assert one.micro_batches() == [(number, lane) for number in range(2) for lane in range(4)]
    for rank in ranks:
        (lane,) = rank.lanes(4)
        assert rank.lanes(None) == rank.lanes(4)
        assert list(World(rank.rank // 2, 2, layout=Layout().of(2)).lanes(4))[rank.rank % 2] == lane
        for number in range(2):
            (batch,) = [one.batch(*place) for place in one.micro_batches() if place == (number, lane)]
            due = data.batch(0, seed=seed, rank=number * 4 + rank.rank, world=8, size=size)
            assert torch.equal(batch.inputs, due.inputs)


def test_each_lane_has_its_own_dropout(text):
    seeded = engine(text, World(), 2)

    def drawn(position: int, lane: int) -> float:
        seeded.seed_dropout(position, lane)
        return float(torch.rand(()))

    found = [drawn(position, lane) for position in range(2) for lane in range(2)]
    assert len(set(found)) == 4
    assert found == [drawn(position, lane) for position in range(2) for lane in range(2)]


def test_the_loss_is_the_mean_over_all_lanes(text):
    """Without dropout, four lanes are the accumulation of four times as many micro-batches."""
    lanes, parts = (
        Engine(replace(wanted, model=wanted.model_for(data)), data, World())
        for wanted in (
            experiment(text, {"dropout": 0.0}, lanes=4, accumulate=2),
            experiment(text, {"dropout": 0.0}, accumulate=8),
        )
        for data in (wanted.data.build(wanted.model.context),)
    )
    for _ in range(3):
        one, other = lanes.update(), parts.update()
        assert one[:4] == other[:4]
    assert lanes.progress.tokens == parts.progress.tokens
    assert parts.progress.position == 4 * lanes.progress.position


def test_a_run_writes_its_number_of_lanes_down(text, tmp_path):
    wanted, two = experiment(text), World(0, 2, layout=Layout().of(2))
    assert with_lanes(wanted, World(), resumed=False).train.lanes is None
    assert with_lanes(wanted, two, resumed=False).train.lanes == 2
    assert with_lanes(wanted, World(0, 4, layout=Layout(tensor=2).of(4)), resumed=False).train.lanes == 2
    with pytest.raises(UserError, match="the run has 1 lane, which 2 parts"):
        with_lanes(wanted, two, resumed=True)
    run = start(tmp_path, experiment(text, lanes=3))
    assert prepare(experiment(text, lanes=3), run, World(), 0.0, resume=False).lanes == range(3)
    assert run.config["train"]["lanes"] == 3
    with pytest.raises(ValueError, match="lanes must be at least 1"):
        TrainConfig(lanes=0).check()


def test_a_loss_over_all_ranks_has_one_lane_in_each(text):
    wanted = replace(experiment(text, lanes=2), task=ContrastiveConfig())
    assert with_lanes(wanted, World(1, 2, layout=Layout().of(2)), resumed=True).train.lanes == 2
    for world in (World(), World(1, 4, layout=Layout(tensor=2).of(4))):
        with pytest.raises(UserError, match="each of them has one lane: use 2 processes that share the batch"):
            with_lanes(wanted, world, resumed=True)
