"""Number formats: the loss scale, and a probe that dies in our stead."""

import pytest
import torch
from train_kit import experiment, start

from regard.errors import UserError
from regard.train import precision, train
from regard.train.precision import Precision, Scaler

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget_probes():
    precision.probe.cache_clear()
    yield
    precision.probe.cache_clear()


def test_float32_is_the_default_on_cpu_and_casts_nothing():
    chosen = Precision("auto", CPU)
    assert (chosen.name, chosen.dtype, chosen.scaler().active) == ("float32", torch.float32, False)
    with chosen.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_a_cpu_that_dies_of_bfloat16_is_refused_with_the_fix(monkeypatch, text, tmp_path):
    # A real child that dies as such a CPU would make it die.
    monkeypatch.setattr(precision, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)  # {name}")
    wanted = experiment(text, precision="bfloat16")
    with pytest.raises(UserError, match=r"bfloat16.*signal 4.*--train.precision float32"):
        train(wanted, start(tmp_path, wanted))


def test_a_trial_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(precision, "_PROBE", "raise SystemExit('no such {name}')")
    with pytest.raises(UserError, match="no such float16"):
        Precision("float16", CPU)


def _cpu_can(name: str) -> bool:
    return precision.probe(name) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_trains_in_16_bits_where_the_cpu_can(text, tmp_path, name):
    if not _cpu_can(name):
        pytest.skip(f"this CPU cannot multiply {name}")
    wanted = experiment(text, precision=name, steps=40, model={"dropout": 0.0, "qk_norm": False})
    result = train(wanted, start(tmp_path, wanted))
    assert result.validation_loss is not None
    assert result.validation_loss < 2.2


def test_the_scale_halves_on_overflow_and_doubles_after_patience():
    scaler = Scaler(True)
    start = scaler.scale
    scaler.update(overflow=True)
    assert scaler.scale == start / 2
    for _ in range(Scaler.PATIENCE):
        scaler.update(overflow=False)
    assert scaler.scale == start
    assert not scaler.exhausted
    while not scaler.exhausted:
        scaler.update(overflow=True)
    assert scaler.scale < Scaler.SMALLEST


def test_without_float16_there_is_no_scale():
    scaler = Scaler(False)
    scaler.update(overflow=True)
    assert scaler.scale == 1
    assert scaler.exhausted  # a gradient that is not finite cannot be blamed on it
