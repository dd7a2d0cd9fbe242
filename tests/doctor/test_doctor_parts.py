"""Single checks of the doctor on constructed curves, batches and gradients, and text by brute force."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.attention import Packed, Padded
from regard.config import override
from regard.data import PairBatch, TextBatch, TextConfig
from regard.data.texts.rolling_hash import hashes_of
from regard.data.translation.sentence_pairs import SentencePairs
from regard.doctor import Finding
from regard.doctor.check import Check
from regard.doctor.checks.duplicated_data import DuplicatedData, occurrences
from regard.doctor.checks.experts import OverloadedExpert, UnusedExpert
from regard.doctor.checks.gradients import ExplodingGradients, VanishingGradients
from regard.doctor.checks.initial_loss import InitialLoss
from regard.doctor.checks.label_leak import LabelLeak
from regard.doctor.checks.learning_rate import LearningRateTooHigh, LearningRateTooLow
from regard.doctor.checks.loss_spike import spike
from regard.doctor.checks.memory import MemoryFull
from regard.doctor.checks.overfitting import Overfitting
from regard.doctor.checks.starvation import Starvation
from regard.doctor.checks.token_range import TokenRange
from regard.doctor.context import History, RecentBatches, Resources, TrainingRun
from regard.doctor.gradients import Gradients, LayerPart, layer_parts
from regard.doctor.side_pass import first_rows
from regard.models import GPTConfig, RecurrentConfig
from regard.nn.experts.moe import MoEConfig
from regard.train import ConstantScheduleConfig, Experiment, TrainConfig, TrainingStep
from regard.train.engine import Engine
from regard.train.shard import World


def a_run(vocabulary: int = 20, epoch: float = math.inf, **train: Any) -> TrainingRun:
    data: Any = type("Epochs", (), {"epoch": lambda self, size: epoch})()
    return TrainingRun(Experiment(GPTConfig(vocabulary=vocabulary), train=TrainConfig(**train)), data=data)


class Curves:
    """Losses as if a run had logged them, and what the checks of such numbers find."""

    def __init__(self, losses: list[float], updates: tuple[float, ...] = (0.01,), warmup: float = 0.0) -> None:
        self.schedule, self.vocabulary, self.history = ConstantScheduleConfig(warmup=warmup), 10**9, History()
        for step, loss in enumerate(losses, start=1):
            self.history.add(step, loss, 1e-3 * self.schedule.factor(step - 1, len(losses)), 1.0)
        self.history.updates += updates

    def findings(self) -> list[Finding]:
        run = a_run(self.vocabulary, steps=len(self.history.steps), schedule=self.schedule)
        checks: list[type[Check]] = [LearningRateTooHigh, LearningRateTooLow, ExplodingGradients, Overfitting]
        return [finding for check in checks for finding in check(run).on_history(self.history)]


def curves(*given: Any, **named: Any) -> Curves:
    return Curves(*given, **named)


def judge(batches: RecentBatches, vocabulary: int, epoch: float) -> list[Finding]:
    run = a_run(vocabulary, epoch)
    return [finding for check in (TokenRange, LabelLeak, DuplicatedData) for finding in check(run).on_batches(batches)]


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


def test_a_model_that_hardly_moves_and_knows_little() -> None:
    slow = [3.0 - 0.005 * i for i in range(60)]
    assert kinds(curves(slow, (5e-4,)).findings()) == []  # a model that is trained on
    made = curves(slow, (5e-4,))
    made.vocabulary = 21
    assert kinds(made.findings()) == [("rate_too_low", "train.optimizer.lr")]


def set_norms(made: Curves, norms: list[float]) -> None:
    made.history.steps = [step._replace(norm=norm) for step, norm in zip(made.history.steps, norms, strict=True)]


def test_gradients_that_grow_throughout() -> None:
    made = curves([2.0 - 0.01 * i for i in range(80)])
    set_norms(made, [1.0 + 0.01 * i for i in range(80)])
    assert kinds(made.findings()) == []
    set_norms(made, [1.0 + 0.5 * i for i in range(80)])
    assert kinds(made.findings()) == []  # from 10 to 35: more, but not without end
    set_norms(made, [1.08**i for i in range(80)])
    assert kinds(made.findings()) == [("exploding_gradients", "")]


def test_a_jump_is_more_than_losses_vary() -> None:
    losses = [2.0 + 0.02 * (i % 3) for i in range(20)]
    assert spike(losses) is None
    assert spike([*losses, 2.6]) == pytest.approx(0.56)
    noisy = [2.0 + 0.4 * (i % 3) for i in range(20)]
    assert spike([*noisy, 3.1]) is None
    assert spike([]) is None


def test_overfitting_needs_both_losses() -> None:
    made = curves(FALLING)
    made.history.validation = [(20, 2.6), (40, 2.7), (60, 2.9)]
    assert kinds(made.findings()) == [("overfitting", "")]
    made.history.validation = [(20, 2.6), (40, 2.3), (60, 2.2)]
    assert kinds(made.findings()) == []


def test_the_history_of_a_folder() -> None:
    history = History()
    logged = {"step": 1, "loss": 3.0, "lr": 1e-3, "grad_norm": 2.0}
    infinite = {"step": 2, "loss": "NaN", "lr": 1e-3, "grad_norm": "NaN"}
    history.read([logged, infinite, {"step": 2, "validation_loss": 2.5}, {"step": 2, "gradients": {}}])
    history.add(3, math.nan, 1e-3, 1.0)
    assert history.steps == [(1, 3.0, 1e-3, 2.0)]
    assert history.validation == [(2, 2.5)]


def batch(rows: int = 4, length: int = 12, seed: int = 1) -> TextBatch:
    text = torch.randint(20, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return TextBatch(text[:, :-1], text[:, 1:])


def test_batches_that_are_well() -> None:
    fetched = RecentBatches({number: batch(seed=number) for number in (5, 4, 3)})
    assert list(judge(fetched, 20, math.inf)) == []


def test_rows_that_come_again() -> None:
    fetched = RecentBatches({number: batch(seed=number % 2) for number in (5, 4, 3)})
    assert kinds(judge(fetched, 20, math.inf)) == [("duplicated_data", "training batches, every 2")]
    assert list(judge(fetched, 20, 3.0)) == []  # all text has come once


def test_rows_that_come_again_within_a_batch() -> None:
    one = batch()
    same = TextBatch(one.inputs[:1].expand(4, -1), one.targets[:1].expand(4, -1))
    assert kinds(judge(RecentBatches({7: same}), 20, math.inf)) == [
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
    fetched = RecentBatches({1: pairs(source, targets, 6), 0: pairs(source, targets, 9)})
    assert kinds(judge(fetched, 20, math.inf)) == [("duplicated_data", "training batches, every 1")]


def test_a_translation_that_stands_in_its_source() -> None:
    copied = pairs([[3, 4, 5, 2], [6, 7, 2]], [[4, 5], [6, 7]], 6)
    assert kinds(judge(RecentBatches({0: copied}), 20, math.inf)) == [("label_leak", "source")]


def pair_findings(train: SentencePairs, validation: SentencePairs) -> Any:
    return DuplicatedData(a_run()).pairs(train, validation)


def test_pairs_that_are_held_out_and_trained_on() -> None:
    train = SentencePairs.of((f"a{i}", f"b{i}", "") for i in range(20))
    other = SentencePairs.of((f"c{i}", f"b{i}", "") for i in range(20))
    assert kinds(pair_findings(train, other)) == []
    assert kinds(pair_findings(train, train)) == [("duplicated_data", "validation")]
    assert kinds(pair_findings(SentencePairs.of(list(zip(*train, strict=True)) * 2), other)) == [
        ("duplicated_data", "training text")
    ]


@pytest.mark.parametrize("back", [0, 1, 3])
def test_targets_that_were_seen_before(back: int) -> None:
    sound = batch(length=30)
    targets = torch.cat((torch.full((4, back), -1), sound.inputs[:, : 30 - back]), dim=1)
    leaking = RecentBatches({0: sound._replace(targets=targets)})
    assert kinds(judge(leaking, 20, math.inf)) == [("label_leak", "targets")]


def test_tokens_outside_the_vocabulary() -> None:
    inputs = batch().inputs.clone()
    inputs[2, 7] = -3
    (finding,) = TokenRange(a_run(20)).judge(9, batch()._replace(inputs=inputs))
    assert finding.where == "batch 9, inputs[2, 7]"
    assert list(TokenRange(a_run(20)).judge(9, batch())) == []
    assert len(list(TokenRange(a_run(5)).judge(9, batch()))) == 2  # inputs and targets


def resources(step: float = 0.0, making: float = 0.0, used: int = 0, limit: int | None = None) -> Resources:
    return Resources(step, making, [], used, 200, limit)


def test_waiting_is_a_share_of_a_step() -> None:
    assert list(Starvation(a_run()).on_resources(resources(0.1, 0.001))) == []
    found = Starvation(a_run(accumulate=2)).on_resources(resources(0.1, 0.03))
    assert kinds(found) == [("starvation", "data.batch")]


def test_memory_gets_a_batch_that_fits() -> None:
    run = a_run()
    (finding,) = MemoryFull(run).on_resources(resources(used=960, limit=1000))
    assert finding.change == f"--data.batch {run.experiment.data.batch // 2} --train.accumulate 2"
    assert list(MemoryFull(run).on_resources(resources(used=800, limit=1000))) == []
    assert list(MemoryFull(run).on_resources(resources(used=800, limit=None))) == []


def experts(*load: Any) -> list[Finding]:
    return [finding for check in (UnusedExpert, OverloadedExpert) for finding in check(a_run()).judge(*load)]


def test_experts() -> None:
    fair, mixture = [0.25] * 4, MoEConfig(experts=4, active=2, balance=0.01)
    assert experts("blocks.0", [0.25, 0.2, 0.3, 0.25], fair, mixture) == []
    lost = kinds(experts("a", [0.0, 0.3, 0.4, 0.3], [1e-6, 0.3, 0.4, 0.3], mixture))
    assert lost == [("unused_expert", "a, expert 0")]
    nearly = [0.0, 0.3, 0.4, 0.3], [0.1, 0.3, 0.3, 0.3]  # selected, had its logit been a little higher
    assert experts("a", *nearly, mixture) == []
    assert kinds(experts("a", *nearly, replace(mixture, balance=0.0))) == [("unused_expert", "a, expert 0")]
    assert kinds(experts("a", [0.2, 0.5, 0.2, 0.1], fair, mixture)) == [("overloaded_expert", "a, expert 1")]
    assert experts("a", [0.5, 0.5], [0.5, 0.5], mixture) == []


def test_gradients_by_layer() -> None:
    stack = [LayerPart("blocks", i, "attention") for i in range(3)]

    def judged(*values: float | None, total: float = 1.0) -> list[tuple[str, str]]:
        given = Gradients(dict(zip(stack, values, strict=False)), total, {})
        checks = (ExplodingGradients, VanishingGradients)
        return kinds(finding for check in checks for finding in check(a_run()).on_gradients(given))

    assert judged(0.5, 0.4, 0.3) == []
    assert judged(150.0, 140.0, 0.3) == [("exploding_gradients", "blocks.1.attention")]
    assert judged(1e-5, 0.4, 0.3) == [("vanishing_gradients", "blocks.0.attention")]
    assert judged(None, 0.4, 0.3) == [("vanishing_gradients", "blocks.0")]
    assert judged(0.0, 0.0, 0.0) == []
    assert judged(500.0, total=600.0) == [("exploding_gradients", "blocks.0.attention")]


def test_norms_are_those_before_clipping() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) / 2
    norms = Gradients.of(model, layer_parts(model), 10.0, 10.0).norms
    assert [part.name for part in norms] == ["0", "1"]
    assert math.hypot(*(norm or 0.0 for norm in norms.values())) == pytest.approx(10.0)


def test_the_rolling_hash_is_that_of_the_run() -> None:
    tokens = np.random.default_rng(1).integers(0, 3, 400)
    hashes = hashes_of(tokens, 5)
    runs = [tuple(tokens[i : i + 5]) for i in range(396)]
    same = {(a == b) == (x == y) for a, x in zip(hashes, runs, strict=True) for b, y in zip(hashes, runs, strict=True)}
    assert same == {True}
    wanted = np.unique(hashes[::7])
    counted = [int((hashes == one).sum()) for one in wanted]
    assert occurrences(wanted, hashes).tolist() == counted


def test_a_few_rows_of_a_batch() -> None:
    made = first_rows(batch(), 2, 5)
    assert made.inputs.shape == made.targets.shape == (2, 5)
    assert first_rows(batch(), 9).inputs.shape == (4, 12)
    padded: Any = first_rows(batch()._replace(slots=Padded(torch.tensor([12, 5, 3, 2]), 12)), 2)
    assert padded.slots.lengths.tolist() == [12, 5]
    packed: Any = first_rows(batch()._replace(slots=Packed.of([[12], [5, 7], [3], [2, 2]], 12)), 2)
    assert (packed.slots.rows, packed.slots.documents) == (2, ((12,), (5, 7)))


def test_a_suggested_change_differs_from_the_setting() -> None:
    run = a_run()
    normalized = TrainingRun(Experiment(GPTConfig(vocabulary=20, qk_norm=True)))
    recurrent = TrainingRun(Experiment(RecurrentConfig(vocabulary=20)))
    changes = "--model.qk_norm true", "a lower --train.optimizer.lr"
    plain = TrainingRun(Experiment(GPTConfig(vocabulary=20, qk_norm=False)))
    assert Overfitting(plain).finding("", "", "", *changes).change == ", or ".join(changes)
    for other in (normalized, recurrent):
        assert Overfitting(other).finding("", "", "", *changes).change == changes[1]
    assert Overfitting(normalized).finding("", "", "", changes[0]).change == "follow the evidence: no setting fixes it"
    same = f"--train.clip {run.experiment.train.clip}"
    assert same not in Overfitting(run).finding("", "", "", f"{same}, which limits the damage", "more text").change


def test_all_checks_suggest_one_learning_rate() -> None:
    """Curves that look too high and, without measured updates, too low as well."""
    losses = [3.0, *[3.3] * 30, *[3.0] * 30]
    found = curves(losses, updates=()).findings()
    changes = [re.findall(r"--train.optimizer.lr ([\d.e-]+)", finding.change) for finding in found]
    assert len({rate for rates in changes for rate in rates}) == 1
    assert [finding.kind for finding in found] == ["rate_too_high"]


def test_a_first_loss_is_compared_with_a_uniform_guess() -> None:
    check = InitialLoss(a_run(vocabulary=4099))
    guess = math.log(4099)
    step = TrainingStep(1, guess + 0.05, 0.1, 1.0, 1, 1.0)
    assert not list(check.on_step(step))
    assert not list(check.on_step(step._replace(loss=guess + 1, terms={"next_token": guess, "balance": 1.0})))
    assert not list(check.on_step(step._replace(step=2, loss=guess - 3)))
    (finding,) = check.on_step(step._replace(loss=12.4))
    assert "12.40 before any update, and 8.32" in finding.evidence
    records = [
        {"step": 0, "entropy": {}},
        {"step": 1, "loss": 12.4},
        {"step": 1, "gradients": {}},
        {"step": 2, "loss": 9.0},
    ]
    assert [one.evidence for one in check.on_records(records)] == [finding.evidence]
    assert not list(check.on_records([{"step": 1, "loss": "NaN"}]))


def test_the_batch_that_fits_trains_on_the_same_tokens(tmp_path: Path) -> None:
    """The advice for full memory changes the micro-batches and not the updates."""
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 20, encoding="utf-8")
    model = GPTConfig(context=8, layers=1, heads=2, width=8, zero_init=False)
    train = TrainConfig(steps=5, device="cpu", evaluate_every=None)
    experiment = Experiment(model, TextConfig(path=str(path), batch=8), train=train)
    (finding,) = MemoryFull(TrainingRun(experiment)).on_resources(Resources(1.0, 0.0, [], 95, 10, 100))
    smaller = override(experiment, finding.change.split())
    assert smaller.data.batch * smaller.train.accumulate == 8 > smaller.data.batch
    weights = []
    for each in (experiment, smaller):
        data = each.data.build(8)
        engine = Engine(replace(each, model=each.model_for(data)), data, World())
        engine.model.double()
        for _ in range(5):
            engine.update()
        weights.append(engine.model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-10, msg=name)
