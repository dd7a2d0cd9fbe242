"""However an update is cut into micro-batches, it is the same update."""

from dataclasses import replace

import pytest
import torch
from train_kit import MODEL, TRAIN, RowsConfig

from regard.parallel.world import World
from regard.train import Experiment
from regard.train.engine import Engine
from regard.train.evaluate import evaluate

STILL = replace(MODEL, vocabulary=13, dropout=0.0)


def _engine(batch: int, accumulate: int = 1, **training) -> Engine:
    train = replace(TRAIN, accumulate=accumulate, **training)
    experiment = Experiment(STILL, RowsConfig(batch=batch), train=train)
    engine = Engine(experiment, experiment.data.build(8), World())
    engine.model.double()
    return engine


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 2), (4, 4), (1, 16)])
def test_accumulation_equals_the_big_batch(batch, accumulate):
    """Rows have different numbers of targets, so a mean of means would not do."""
    whole, cut = _engine(16), _engine(batch, accumulate)
    for _ in range(3):
        a, b = whole.update(), cut.update()
        assert b.loss == pytest.approx(a.loss, abs=1e-12)
        assert b.norm == pytest.approx(a.norm, abs=1e-12)
    for (name, p), q in zip(whole.model.named_parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-12, msg=name)
    assert (whole.progress.tokens, whole.progress.step) == (cut.progress.tokens, cut.progress.step)
    assert cut.progress.position == 3 * accumulate


def test_the_loss_is_the_mean_over_targets():
    engine = _engine(16)
    batch = engine.batch(0)
    logits = engine.model(batch.inputs)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)
    assert engine.update().loss == pytest.approx(expected.item(), abs=1e-12)
    assert engine.progress.tokens == int((batch.targets >= 0).sum())


def test_evaluation_weighs_every_target_once_however_it_is_cut():
    losses = {size: evaluate(_engine(size)) for size in (1, 2, 16)}
    first = losses[1]
    assert first is not None
    for measures in losses.values():
        assert measures is not None
        assert measures["validation_loss"] == pytest.approx(first["validation_loss"], abs=1e-12)
    engine = _engine(16)
    (batch,) = engine.data.validation_batches(16)
    logits = engine.model(batch.inputs)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)
    assert first["validation_loss"] == pytest.approx(expected.item(), abs=1e-12)


def test_evaluation_is_without_dropout_and_leaves_no_trace():
    experiment = Experiment(replace(STILL, dropout=0.5), RowsConfig(batch=4), train=TRAIN)
    engine = Engine(experiment, experiment.data.build(8), World())
    assert evaluate(engine) == evaluate(engine)
    assert engine.model.training
    assert all(p.grad is None for p in engine.model.parameters())


def test_clipping_cuts_the_norm_and_records_it_uncut():
    free, clipped = _engine(4, clip=None), _engine(4, clip=1e-3)
    a, b = free.update(), clipped.update()
    assert a.norm == b.norm > 1e-3
    gradients = [p.grad for p in clipped.model.parameters() if p.grad is not None]
    assert float(torch.nn.utils.get_total_norm(gradients)) == pytest.approx(1e-3)


def test_activation_checkpointing_changes_nothing_even_with_dropout():
    def weights(checkpointing: bool) -> list[torch.Tensor]:
        train = replace(TRAIN, checkpointing=checkpointing)
        experiment = Experiment(replace(STILL, dropout=0.3), RowsConfig(batch=4), train=train)
        engine = Engine(experiment, experiment.data.build(8), World())
        for _ in range(2):
            engine.update()
        return list(engine.model.parameters())

    for a, b in zip(weights(False), weights(True), strict=True):
        assert torch.equal(a, b)


def test_float16_leaves_out_an_update_that_overflowed(monkeypatch):
    engine = _engine(4)
    engine.scaler.active = True
    engine.scaler.scale = 2.0**1023  # every gradient overflows
    before = [p.detach().clone() for p in engine.model.parameters()]
    update = engine.update()
    assert update.finite
    assert engine.progress.step == 1
    assert engine.scaler.scale == 2.0**1022
    assert all(torch.equal(p, q) for p, q in zip(engine.model.parameters(), before, strict=True))
    engine.scaler.scale = 2.0**8
    plain = _engine(4)
    plain.progress.position = plain.progress.step = 1
    a, b = engine.update(), plain.update()
    assert a.norm == pytest.approx(b.norm)
    for p, q in zip(engine.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
