"""The bytes that a plan predicts for each layout, against those that a step counts; what hides; when to save."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from collectives import CASES, MODEL, RANKS, REAL, TRAIN, counted
from torch import distributed

from forked_ranks import run_ranks
from regard.attention import Causal, Window
from regard.data import TextConfig
from regard.parallel.layout import Layout
from regard.plan import Hardware, plan
from regard.plan.checkpoints import checkpoints
from regard.plan.communication import communication, visible
from regard.plan.hardware import HOURS_BETWEEN_FAILURES, WRITE
from regard.plan.layout import Messages, RankModel, RankWeight, Unit, rank_model
from regard.plan.trace import trace
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


def predicted(name: str) -> dict[str, float]:
    """The plan's bytes by kind."""
    layout, experiment = (CASES | REAL)[name]
    return communication(rank_model(experiment, layout.of(RANKS)), trace(experiment).stream)


def check(name: str, found: dict[str, float]) -> None:
    """Every kind within 1 %, but for what the host sums, which is a few numbers."""
    assert found.pop("host") < 1000
    assert found == pytest.approx(predicted(name), rel=CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_a_fake_group_counts(fake_group: None, name: str) -> None:
    check(name, counted(*CASES[name], rank=0))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, float]]]:
    """What each of four gloo ranks counted."""
    folder = tmp_path_factory.mktemp("counted")
    run_ranks(Path(__file__).with_name("counted_rank.py"), RANKS, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_four_gloo_ranks_count(ranks: list[dict[str, dict[str, float]]], name: str) -> None:
    for rank in ranks:
        check(name, rank[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REAL if name.startswith("context")])
def test_a_ring_sends_what_the_mask_lets_others_see(ranks: list[dict[str, dict[str, float]]], name: str) -> None:
    """The plan's bytes are those of the busiest rank; other kinds are the same on all ranks."""
    most = max(max(rank[name].pop("ring"), rank[name].pop("ring sent")) for rank in ranks)
    for rank in ranks:
        check(name, {**rank[name], "ring": most})


@pytest.mark.slow
def test_routed_tokens_travel_to_their_experts(ranks: list[dict[str, dict[str, float]]]) -> None:
    """The router is free to prefer experts, so only the mean over the ranks is what even routing gives."""
    mean = sum(rank["experts"].pop("experts") for rank in ranks) / RANKS
    for rank in ranks:
        check("experts", {**rank["experts"], "experts": mean})


def test_by_hand() -> None:
    """A table of 3 rows of 5 on 2 ranks, which pad it to 4 rows, and a matrix of 4 x 5: 4 bytes a number."""
    table, matrix = RankWeight((3, 5)), RankWeight((4, 5), muon=True)
    layout, frozen = Layout(replicate=2, shard=2), RankWeight((4, 5), trains=False)
    units = (Unit((table,), 2, 2, block=False), Unit((frozen,), 2, 2), Unit((matrix,), 2, 2))
    given = Experiment(MODEL, TextConfig(batch=4), train=replace(TRAIN, accumulate=3))
    assert communication(RankModel(given, layout, units, 2, Messages()), (4, 256, 32)) == {
        "weights forward": 3 * (80 + 80 + 80) / 2,
        "weights backward": 3 * 80 / 2,  # no gradient passes the frozen block
        "gradients": (80 + 80) / 2,
        "replicas": 2 * (40 + 40) / 2,
        "Muon's matrices": 80 / 2,
    }


def test_activations_and_tokens_by_hand() -> None:
    """4 rows of 256 tokens, C = 32, 4 bytes: 131,072 bytes of activations, and 2 sums of C forward and backward."""
    given = Experiment(MODEL, TextConfig(batch=4), train=TRAIN)
    summed = communication(RankModel(given, Layout(shard=1, tensor=2), (), 2, Messages(64, 64, 32)), (4, 256, 32))
    assert summed == {"tensor": 2 * (2 * 131072 * 4) / 2}  # two micro-batches, an all-reduce of n bytes moves n on 2
    there = communication(RankModel(given, Layout(shard=2, expert=2), (), 2, Messages(experts=64)), (4, 256, 32))
    assert there == {"experts": 2 * 4 * (2 * 131072) / 2}  # two experts for each token; there and back, twice


def test_a_window_of_keys_by_hand() -> None:
    """A row of 4 x 512 tokens as 8 pieces of 256 in zigzag order: 0 7, 1 6, 2 5, 3 4. Tiles have 128 tokens."""
    read, given = visible(Causal() & Window(129), 2048, 4, 128)
    assert read == [128, 3 * 128 - 128, 256, 128]
    assert given == [128, 256, 256, 128]
    read, given = visible(Causal(), 2048, 4, 128)
    assert read == [3 * 512, 2 * 512 + 256, 512 + 2 * 256, 3 * 256]
    assert given == [3 * 256, 512 + 2 * 256, 2 * 512 + 256, 3 * 512]


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
    assert one.tokens == copies.tokens == 8 * 4 * 256 * 2
    assert one.memory.weights < copies.memory.weights
    context = plan(given, gpus=8, layout=Layout(context=4), hardware=FAST)
    assert context.tokens == one.tokens / 4
    assert context.memory.activations < one.memory.activations
    assert context.memory.weights == one.memory.weights
