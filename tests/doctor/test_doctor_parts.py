"""The doctor's parts by themselves: curves that were made up, batches that were made up, text by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.data import PairBatch, TextBatch
from regard.data.texts.rolling_hash import hashes_of
from regard.data.translation.sentence_pairs import SentencePairs
from regard.doctor.batches import Fetched, judge, out_of_range, starving
from regard.doctor.curves import Curves
from regard.doctor.gradients import Group, groups, norms
from regard.doctor.gradients import judge as judge_gradients
from regard.doctor.inside import experts, few
from regard.doctor.room import judge as judge_room
from regard.doctor.texts import _counts, _pairs
from regard.nn.experts.moe import MoEConfig
from regard.train import ConstantScheduleConfig, Experiment, TrainConfig


def curves(losses: list[float], moves: tuple[float, ...] = (0.01,), rate: float = 1e-3, warmup: float = 0.0) -> Curves:
    made = Curves(TrainConfig(steps=len(losses), schedule=ConstantScheduleConfig(warmup=warmup)))
    for step, loss in enumerate(losses, start=1):
        made.add(step, loss, rate * made.train.schedule.factor(step - 1, len(losses)), 1.0)
    made.moves += moves
    return made


def kinds(found: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in found]


FALLING = [3.0 - 1.5 * i / 60 for i in range(60)]


def test_a_loss_that_falls_is_well() -> None:
    assert kinds(curves(FALLING).findings()) == []
    assert kinds(curves(FALLING, (0.2, 0.1)).findings()) == []


def test_a_rate_is_too_high_when_the_loss_and_the_weights_say_so() -> None:
    worse = [3.0, 3.3, 4.1, 4.2, 4.0] + [3.9] * 40
    assert kinds(curves(worse, (0.4,), warmup=5).findings()) == [("rate_too_high", "train.optimizer.lr")]
    assert kinds(curves(worse, (1e-3,)).findings()) == []
    recovered = [3.0, 3.6, 3.8, 3.7, 3.3, *FALLING]
    assert kinds(curves(recovered, (0.4,)).findings()) == [("rate_too_high", "train.schedule.warmup")]


def test_a_rate_is_too_low_when_nothing_moves() -> None:
    still = [3.0 - 1e-4 * i for i in range(60)]
    assert kinds(curves(still, (1e-4,)).findings()) == [("rate_too_low", "train.optimizer.lr")]
    assert kinds(curves(still, (1e-2,)).findings()) == []
    assert kinds(curves(still, (1e-5,), warmup=6000).findings()) == [("rate_too_low", "train.schedule.warmup")]
    assert kinds(curves(FALLING, (1e-3,), warmup=6000).findings()) == [("rate_too_low", "train.schedule.warmup")]


def test_one_who_hardly_moves_and_knows_little() -> None:
    slow = [3.0 - 0.005 * i for i in range(60)]
    assert kinds(curves(slow, (5e-4,)).findings()) == []  # a model that is trained on
    made = curves(slow, (5e-4,))
    made.guess = math.log(21)
    assert kinds(made.findings()) == [("rate_too_low", "train.optimizer.lr")]


def test_gradients_that_grow_throughout() -> None:
    made = curves([2.0 - 0.01 * i for i in range(80)])
    made.norms = [1.0 + 0.01 * i for i in range(80)]
    assert kinds(made.findings()) == []
    made.norms = [1.0 + 0.5 * i for i in range(80)]
    assert kinds(made.findings()) == []  # from 10 to 35: more, but not without end
    made.norms = [1.08**i for i in range(80)]
    assert kinds(made.findings()) == [("exploding_gradients", "")]


def test_a_jump_is_more_than_losses_vary() -> None:
    made = curves([2.0 + 0.02 * (i % 3) for i in range(20)])
    assert made.jumped() is None
    made.add(21, 2.6, 1e-3, 1.0)
    assert made.jumped() == pytest.approx(0.56)
    noisy = curves([2.0 + 0.4 * (i % 3) for i in range(20)])
    noisy.add(21, 3.1, 1e-3, 1.0)
    assert noisy.jumped() is None
    noisy.add(22, math.nan, 1e-3, 1.0)
    assert len(noisy.losses) == 21


def test_learning_by_heart_needs_both_losses() -> None:
    made = curves(FALLING)
    made.validation = [(20, 2.6), (40, 2.7), (60, 2.9)]
    assert kinds(made.findings()) == [("overfitting", "")]
    made.validation = [(20, 2.6), (40, 2.3), (60, 2.2)]
    assert kinds(made.findings()) == []


def test_curves_out_of_a_folder() -> None:
    made = Curves(TrainConfig())
    for record in (
        {"step": 1, "loss": 3.0, "lr": 1e-3, "grad_norm": 2.0},
        {"step": 2, "loss": "NaN", "lr": 1e-3, "grad_norm": "NaN"},
        {"step": 2, "validation_loss": 2.5},
        {"step": 2, "gradients": {}},
    ):
        made.read(record)
    assert made.losses == [(1, 3.0)]
    assert made.validation == [(2, 2.5)]


def batch(rows: int = 4, length: int = 12, seed: int = 1) -> TextBatch:
    text = torch.randint(20, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return TextBatch(text[:, :-1], text[:, 1:])


def test_batches_that_are_well() -> None:
    fetched = Fetched({number: batch(seed=number) for number in (5, 4, 3)}, 0.0)
    assert list(judge(fetched, 20, math.inf)) == []


def test_rows_that_come_again() -> None:
    fetched = Fetched({number: batch(seed=number % 2) for number in (5, 4, 3)}, 0.0)
    assert kinds(judge(fetched, 20, math.inf)) == [("duplicated_data", "training batches, every 2")]
    assert list(judge(fetched, 20, 3.0)) == []  # all text has come once


def test_rows_that_come_again_within_a_batch() -> None:
    one = batch()
    same = TextBatch(one.inputs[:1].expand(4, -1), one.targets[:1].expand(4, -1))
    assert kinds(judge(Fetched({7: same}, 0.0), 20, math.inf)) == [
        ("duplicated_data", "training batches, within batch 7")
    ]


def pairs(source: list[list[int]], targets: list[list[int]], width: int) -> PairBatch:
    """Rows of any lengths, padded to `width` with 9; 1 begins and 2 ends a translation."""
    rows = [torch.full((len(source), width), fill) for fill in (9, 9, -1)]
    for i, (one, other) in enumerate(zip(source, targets, strict=True)):
        for row, tokens in zip(rows, (one, [1, *other], [*other, 2]), strict=True):
            row[i, : len(tokens)] = torch.tensor(tokens)
    return PairBatch(rows[0], torch.tensor([len(one) for one in source]), rows[1], rows[2])


def test_pairs_that_come_again_with_other_padding() -> None:
    source, targets = [[3, 4, 5, 2], [6, 7, 2]], [[5, 6], [7, 4, 8]]
    fetched = Fetched({1: pairs(source, targets, 6), 0: pairs(source, targets, 9)}, 0.0)
    assert kinds(judge(fetched, 20, math.inf)) == [("duplicated_data", "training batches, every 1")]


def test_a_translation_that_stands_in_its_source() -> None:
    copied = pairs([[3, 4, 5, 2], [6, 7, 2]], [[4, 5], [6, 7]], 6)
    assert kinds(judge(Fetched({0: copied}, 0.0), 20, math.inf)) == [("label_leak", "source")]


def test_pairs_that_are_held_out_and_trained_on() -> None:
    train = SentencePairs.of((f"a{i}", f"b{i}", "") for i in range(20))
    other = SentencePairs.of((f"c{i}", f"b{i}", "") for i in range(20))
    assert kinds(_pairs(train, other)) == []
    assert kinds(_pairs(train, train)) == [("duplicated_data", "validation")]
    assert kinds(_pairs(SentencePairs.of(list(zip(*train, strict=True)) * 2), other)) == [
        ("duplicated_data", "training text")
    ]


@pytest.mark.parametrize("back", [0, 1, 3])
def test_targets_that_were_seen_before(back: int) -> None:
    sound = batch(length=30)
    targets = torch.cat((torch.full((4, back), -1), sound.inputs[:, : 30 - back]), dim=1)
    leaking = Fetched({0: sound._replace(targets=targets)}, 0.0)
    assert kinds(judge(leaking, 20, math.inf)) == [("label_leak", "targets")]


def test_tokens_that_there_are_not() -> None:
    inputs = batch().inputs.clone()
    inputs[2, 7] = -3
    (finding,) = out_of_range(9, batch()._replace(inputs=inputs), 20)
    assert finding.where == "batch 9, inputs[2, 7]"
    assert list(out_of_range(9, batch(), 20)) == []
    assert len(list(out_of_range(9, batch(), 5))) == 2  # inputs and targets


def test_waiting_is_a_share_of_a_step() -> None:
    assert list(starving(0.001, 0.1, 1)) == []
    assert kinds(starving(0.03, 0.1, 2)) == [("starvation", "data.batch")]


def test_memory_gets_a_batch_that_fits() -> None:
    experiment = Experiment()
    (finding,) = judge_room(960, 200, 1000, experiment)
    assert finding.change == f"--data.batch {experiment.data.batch // 2} --train.accumulate 2"  # type: ignore[attr-defined]
    assert list(judge_room(800, 200, 1000, experiment)) == []
    assert list(judge_room(800, 200, None, experiment)) == []


def test_experts() -> None:
    fair, mixture = [0.25] * 4, MoEConfig(experts=4, active=2, balance=0.01)
    assert list(experts("blocks.0", [0.25, 0.2, 0.3, 0.25], fair, mixture)) == []
    lost = kinds(experts("a", [0.0, 0.3, 0.4, 0.3], [1e-6, 0.3, 0.4, 0.3], mixture))
    assert lost == [("unused_expert", "a, expert 0")]
    nearly = [0.0, 0.3, 0.4, 0.3], [0.1, 0.3, 0.3, 0.3]  # chosen, had its logit been a little higher
    assert list(experts("a", *nearly, mixture)) == []
    assert kinds(experts("a", *nearly, replace(mixture, balance=0.0))) == [("unused_expert", "a, expert 0")]
    assert kinds(experts("a", [0.2, 0.5, 0.2, 0.1], fair, mixture)) == [("overloaded_expert", "a, expert 1")]
    assert list(experts("a", [0.5, 0.5], [0.5, 0.5], mixture)) == []


def test_gradients_by_layer() -> None:
    stack = [Group("blocks", i, "attention") for i in range(3)]

    def judged(*values: float | None) -> list[tuple[str, str]]:
        return kinds(judge_gradients(dict(zip(stack, values, strict=True)), 1.0, None))

    assert judged(0.5, 0.4, 0.3) == []
    assert judged(150.0, 140.0, 0.3) == [("exploding_gradients", "blocks.1.attention")]
    assert judged(1e-5, 0.4, 0.3) == [("vanishing_gradients", "blocks.0.attention")]
    assert judged(None, 0.4, 0.3) == [("vanishing_gradients", "blocks.0")]
    assert judged(0.0, 0.0, 0.0) == []
    assert kinds(judge_gradients({stack[0]: 500.0}, 600.0, None)) == [("exploding_gradients", "blocks.0.attention")]


def test_norms_are_those_before_clipping() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) / 2
    found = norms(groups(model), 10.0, model)
    assert [group.name for group in found] == ["0", "1"]
    assert math.hypot(*(norm or 0.0 for norm in found.values())) == pytest.approx(10.0)


def test_the_rolling_hash_is_that_of_the_run() -> None:
    tokens = np.random.default_rng(1).integers(0, 3, 400)
    hashes = hashes_of(tokens, 5)
    runs = [tuple(tokens[i : i + 5]) for i in range(396)]
    same = {(a == b) == (x == y) for a, x in zip(hashes, runs, strict=True) for b, y in zip(hashes, runs, strict=True)}
    assert same == {True}
    wanted = np.unique(hashes[::7])
    counted = [int((hashes == one).sum()) for one in wanted]
    assert _counts(wanted, hashes).tolist() == counted


def test_a_few_rows_of_a_batch() -> None:
    made = few(batch(), 2, 5)
    assert made.inputs.shape == made.targets.shape == (2, 5)
    assert few(batch(), 9).inputs.shape == (4, 12)
