"""Watching: it writes down what was asked for, and the run does not change by a bit."""

import math
import os
import signal

import pytest
import torch
from report_kit import experiment, start, trained

from regard.attention import WindowConfig
from regard.parallel.tensors import is_sharded
from regard.report import ModelMeasurements, probes
from regard.train import MuonConfig, Observer, train
from regard.train.live import LiveCurve

NAMES = ["blocks.0.attention.mechanism", "blocks.1.attention.mechanism"]


def newest(run):
    found = run.latest()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"dropout": 0.0}, {"optimizer": MuonConfig()}),  # branches in one step, which a hook would break up
        ({"attention": WindowConfig(4), "ngrams": 2}, {"accumulate": 2, "checkpointing": True, "clip": 0.1}),
    ],
)
def test_a_watched_run_is_the_same_run_to_the_bit(text, tmp_path, model, training):
    wanted = experiment(text, model, **training)
    plain = trained(tmp_path, wanted, [], "plain")
    watched = trained(tmp_path, wanted, [ModelMeasurements()], "watched")
    for part in ("model", "optimizer"):
        ours, theirs = getattr(newest(watched), part)(), getattr(newest(plain), part)()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    losses = [[m["loss"] for m in run.metrics() if "loss" in m] for run in (plain, watched)]
    assert losses[0] == losses[1]


def test_samples_entropies_and_gradients_are_written_down(text, tmp_path):
    run = trained(tmp_path, experiment(text), [ModelMeasurements()])
    samples = run.samples()
    assert [s["step"] for s in samples] == [0, 4, 8]
    assert all(len(s["text"]) == probes.SAMPLE and s["prompt"] == "\n" for s in samples)
    looks = [m for m in run.metrics() if "spread" in m]
    assert [m["step"] for m in looks] == [0, 4, 8]
    for look in looks:
        assert list(look["spread"]) == NAMES
        assert all(0 <= share <= 1 for shares in look["spread"].values() for share in shares)
        assert all(0 <= nats <= math.log(16) for values in look["entropy"].values() for nats in values)


def test_the_layers_gradients_make_up_the_whole(text, tmp_path):
    run = trained(tmp_path, experiment(text, clip=0.05), [ModelMeasurements()])
    whole = {m["step"]: m["grad_norm"] for m in run.metrics() if "grad_norm" in m}
    parts = {m["step"]: m["gradients"] for m in run.metrics() if "gradients" in m}
    assert parts.keys() == whole.keys()
    assert set(parts[8]) == {"embed", "blocks.0", "blocks.1", "norm"}
    for step, norm in whole.items():
        assert math.hypot(*parts[step].values()) == pytest.approx(norm, rel=1e-4)


class Stop(Observer):
    """A person who presses Ctrl-C after a step."""

    def __init__(self, after: int):
        self.after = after

    def stepped(self, step):
        if step.step == self.after:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_resumed_run_has_every_look_once(text, tmp_path):
    wanted = experiment(text)
    whole = trained(tmp_path, wanted, [ModelMeasurements()], "whole")
    run = start(tmp_path, wanted, "stopped")
    assert train(wanted, run, [ModelMeasurements(), Stop(5)]).interrupted
    train(wanted, run, [ModelMeasurements()], resume=True)
    assert run.samples() == whole.samples()
    looks = [[m for m in r.metrics() if "spread" in m or "gradients" in m] for r in (run, whole)]
    assert looks[0] == looks[1]


def test_a_run_resumed_from_the_very_start_does_not_look_at_it_twice(text, tmp_path):
    wanted = experiment(text)
    run = start(tmp_path, wanted)
    run.sample({"step": 0, "prompt": "\n", "text": "before"})
    train(wanted, run, [ModelMeasurements()], resume=True)
    assert [s["step"] for s in run.samples()] == [0, 4, 8]


def test_a_run_that_was_not_watched_from_the_start_gets_no_look_at_it(text, tmp_path):
    wanted = experiment(text)
    run = start(tmp_path, wanted)
    train(wanted, run, [Stop(5)])
    train(wanted, run, [ModelMeasurements()], resume=True)
    assert [s["step"] for s in run.samples()] == [8]


def test_the_model_is_left_in_the_mode_it_was_in(text, tmp_path):
    modes = []

    class Ear(Observer):
        def started(self, start):
            self.model = start.model
            modes.append(all(module.training for module in start.model.modules()))

        def stepped(self, step):
            modes.append(all(module.training for module in self.model.modules()))

    trained(tmp_path, experiment(text), [ModelMeasurements(), Ear()])
    assert modes == [True] * 9


def test_without_held_out_text_it_still_looks(text, tmp_path):
    run = trained(tmp_path, experiment(text, validation=0.0), [ModelMeasurements()])
    assert [s["step"] for s in run.samples()] == [0, 4, 8]


def test_a_model_that_cannot_be_looked_at_is_trained_all_the_same(text, tmp_path, capsys):
    class Blind(ModelMeasurements):
        def started(self, start):
            self.broken = start.model.register_forward_pre_hook(self.refuse)  # type: ignore[arg-type]
            super().started(start)

        def refuse(self, *_):
            raise RuntimeError("no view")

    run = trained(tmp_path, experiment(text), [Blind()])
    assert newest(run).step == 8
    assert "no view" in capsys.readouterr().err
    assert not any("spread" in m for m in run.metrics())


def test_a_sharded_model_is_left_alone(text, tmp_path):
    """Rank 0 alone must not run a model whose parts lie elsewhere: here, parameters that say they are parts."""

    class Part(torch.nn.Parameter):
        def full_tensor(self):
            raise AssertionError("nobody may ask for the whole")

    assert is_sharded(Part(torch.zeros(1)))
    heard = []

    class Sharded(ModelMeasurements):
        def started(self, start):
            model = torch.nn.Linear(1, 1)
            model.weight = Part(torch.zeros(1, 1))
            super().started(start._replace(model=model))
            heard.append((self._probe, self._layers))

    trained(tmp_path, experiment(text), [Sharded()])
    assert heard == [(None, {})]


def test_the_curve_on_a_terminal(text, tmp_path, monkeypatch):
    import io

    from regard.train import live

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(live, "DRAWN_EVERY", 0.0)
    monkeypatch.setattr(live, "MOST_POINTS", 6)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    wanted = experiment(text, steps=12)
    out = Terminal()
    trained(tmp_path, wanted, [LiveCurve(out)], "drawn")
    assert "●" in out.getvalue()
    assert any("\u2801" <= sign <= "\u28ff" for sign in out.getvalue())
    plain = io.StringIO()
    trained(tmp_path, wanted, [LiveCurve(plain)], "plain")
    assert "●" not in plain.getvalue()
    assert "step 12  validation loss" in plain.getvalue()
