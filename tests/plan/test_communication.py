"""The bytes that a plan predicts for each layout, against those that a step counts; what hides; when to save."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from collectives import CASES, MODEL, RANKS, TRAIN, counted
from torch import distributed

from regard.data import TextConfig
from regard.parallel.layout import Layout
from regard.plan import Hardware, plan
from regard.plan.checkpoints import checkpoints
from regard.plan.communication import communication
from regard.plan.hardware import HOURS_BETWEEN_FAILURES, WRITE
from regard.plan.layout import RankModel, Weight, rank_model
from regard.train import Experiment

FAST = Hardware(memory=80e9, flops=1e18, link=1e9, network=1e8)
CLOSE = 0.01


@pytest.fixture(scope="module")
def fake_group() -> Iterator[None]:
    """Rank 0 of four that do not exist: collective operations return at once, with any numbers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    distributed.destroy_process_group()


def check(name: str, found: dict[str, float]) -> None:
    """Every kind within 1 %, but for what the host sums, which is a few numbers."""
    layout, experiment = CASES[name]
    expected = communication(rank_model(experiment, layout.of(RANKS)))
    assert found.pop("host") < 1000
    assert found == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_a_fake_group_counts(fake_group: None, name: str) -> None:
    check(name, counted(*CASES[name], rank=0))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, float]]]:
    """What each of four gloo ranks counted."""
    folder = tmp_path_factory.mktemp("counted")
    program = [sys.executable, str(Path(__file__).with_name("counted_rank.py")), str(folder)]
    children = [
        subprocess.Popen(program, env=os.environ | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    try:
        said = [child.communicate(timeout=600)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert not any(child.returncode for child in children), "\n".join(said)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_four_gloo_ranks_count(ranks: list[dict[str, dict[str, float]]], name: str) -> None:
    for rank in ranks:
        check(name, rank[name])


def test_by_hand() -> None:
    """A table of 3 rows of 5 on 2 ranks, which pad it to 4 rows, and a matrix of 4 x 5: 4 bytes a number."""
    table, matrix = Weight((3, 5), 4, trains=True, muon=False), Weight((4, 5), 4, trains=True, muon=True)
    layout, frozen = Layout(replicate=2, shard=2), matrix._replace(trains=False, muon=False)
    given = Experiment(MODEL, TextConfig(batch=4), train=replace(TRAIN, accumulate=3))
    assert communication(RankModel(given, layout, ((table,), (frozen,), (matrix,)), reductions=1)) == {
        "weights forward": 3 * (80 + 80 + 80) / 2,
        "weights backward": 3 * 80 / 2,  # no gradient passes the frozen block
        "gradients": (80 + 80) / 2,
        "replicas": 2 * (40 + 40) / 2,
        "Muon's matrices": 80 / 2,
    }


def test_checkpoints_are_rarer_with_fewer_ranks_and_smaller_files() -> None:
    one, more = checkpoints(60 * WRITE, 1024), checkpoints(60 * WRITE, 4096)
    failures = HOURS_BETWEEN_FAILURES * 3600 / 1024
    assert (one.save, one.failures) == (60, pytest.approx(failures))
    assert one.interval == pytest.approx((2 * 60 * failures) ** 0.5, rel=0.05)  # Young's
    assert more.interval < one.interval
    assert more.lost > one.lost
    assert checkpoints(1e12 * WRITE, 1024).lost == 1


def test_links_between_machines_are_slower() -> None:
    assert FAST.bandwidth(8) == 1e9
    assert FAST.bandwidth(16) == 8e8  # by eight network cards
    assert FAST.bandwidth(4, stride=8) == 1e8  # one device of each machine
    assert FAST.bandwidth(4, stride=2) == 1e9
    assert FAST._replace(network=None).bandwidth(16) == 1e9
    assert FAST.bandwidth(1) == 1e9


@pytest.mark.parametrize(("flops", "hidden"), [(1e7, True), (1e18, False)])
def test_what_takes_no_longer_than_a_block_is_hidden(flops: float, hidden: bool) -> None:
    given = Experiment(replace(MODEL, layers=12), TextConfig(batch=4), train=TRAIN)
    device = FAST._replace(flops=flops)
    made = plan(given, gpus=4, layout=Layout(replicate=2), hardware=device)
    assert [one.kind for one in made.traffic] == ["weights forward", "weights backward", "gradients", "replicas"]
    for one in made.traffic:
        assert one.seconds is not None
        assert one.exposed is not None
        assert (one.exposed < 0.3 * one.seconds) == hidden
        assert one.exposed > 0  # of the first block, or the last
    assert made.seconds is not None
    alone = plan(given, gpus=1, hardware=device).seconds
    assert alone is not None
    assert made.seconds == pytest.approx(alone + sum(one.exposed or 0 for one in made.traffic))


def test_a_layout_shares_tokens_and_weights() -> None:
    given = Experiment(MODEL, TextConfig(batch=4), train=TRAIN)
    one, copies = (plan(given, gpus=8, layout=layout, hardware=FAST) for layout in (Layout(), Layout(replicate=4)))
    assert one.tokens == copies.tokens == 8 * 4 * 32 * 2
    assert one.memory.weights < copies.memory.weights
    context = plan(given, gpus=8, layout=Layout(context=4), hardware=FAST)
    assert context.tokens == one.tokens / 4
    assert context.memory.activations < one.memory.activations
    assert context.memory.weights == one.memory.weights
