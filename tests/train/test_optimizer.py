"""Which rule moves which parameter, and a state that survives a tensor file to the last bit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from train_kit import MODEL

from regard.config import load
from regard.errors import UserError
from regard.models import FixedConfig, Seq2SeqConfig
from regard.runs import Run
from regard.train.muon import Muon
from regard.train.optimizer import AdamWConfig, MuonConfig, OptimizerConfig


def _model(bias: bool = True):
    from dataclasses import replace

    torch.manual_seed(0)
    return replace(MODEL, bias=bias).build()


def _steps(model, optimizer, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(0.5)


@pytest.mark.parametrize("config", [AdamWConfig(), MuonConfig()])
def test_every_parameter_is_moved_by_exactly_one_rule(config):
    model = _model()
    optimizer = config.build(model)
    assert len(optimizer.parameters) == len(set(optimizer.parameters)) == len(list(model.parameters()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _steps(model, optimizer, 1, 0)
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []


def test_muon_takes_the_matrices_inside_the_blocks():
    model = _model()
    optimizer = MuonConfig().build(model)
    (muon,) = (part for part in optimizer.parts if isinstance(part, Muon))
    taken = {optimizer.names[p] for group in muon.param_groups for p in group["params"]}
    assert taken == {n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2}
    assert "embed.weight" not in taken
    assert taken


def test_muon_splits_what_a_layer_keeps_stacked():
    model = _model()
    linear: Any = model.get_submodule("blocks.0.attention.qkv")
    linear.parts = (16, 16, 16)
    for split in (True, False):
        muon = MuonConfig(split=split).build(model).parts[0]
        assert isinstance(muon, Muon)
        assert muon.parts.get(linear.weight) == ((16, 16, 16) if split else None)


def test_only_matrices_decay():
    model = _model()
    optimizer = AdamWConfig(lr=0.1, weight_decay=0.5).build(model)
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1.0)
    for name, parameter in model.named_parameters():
        assert float(parameter.detach().flatten()[0]) == pytest.approx(0.95 if parameter.ndim == 2 else 1.0), name


def test_the_factor_scales_the_step_and_is_not_remembered():
    def change(factors: list[float]) -> Tensor:
        model = _model()
        optimizer = AdamWConfig(lr=1.0, weight_decay=0.0).build(model)
        for factor in factors:
            before = model.embed.weight.detach().clone()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step(factor)
        return model.embed.weight.detach() - before

    # A constant gradient makes every Adam step the rate itself.
    torch.testing.assert_close(change([0.25]), torch.full_like(change([0.25]), -0.25))
    torch.testing.assert_close(change([0.5, 0.25]), change([0.25]))


@pytest.mark.parametrize("config", [AdamWConfig(), MuonConfig()])
def test_a_state_read_back_from_disk_goes_on_bit_for_bit(config, tmp_path):
    whole, broken = _model(), _model()
    optimizer = config.build(whole)
    _steps(whole, optimizer, 3, 0)
    run = Run.create(tmp_path, "run", "", {})
    run.save(3, whole.state_dict(), optimizer.state(), {})
    _steps(whole, optimizer, 3, 1)

    found = run.latest()
    assert found is not None
    state = found.optimizer()
    broken.load_state_dict(found.model())
    resumed = config.build(broken)
    resumed.load(state)
    assert {n: (t.dtype, t.shape) for n, t in resumed.state().items()} == {
        n: (t.dtype, t.shape) for n, t in state.items()
    }
    _steps(broken, resumed, 3, 1)
    for (name, a), b in zip(whole.named_parameters(), broken.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_loading_leaves_nothing_of_what_was_there():
    model = _model()
    optimizer = MuonConfig().build(model)
    _steps(model, optimizer, 1, 0)
    assert optimizer.state()
    optimizer.load({})
    assert optimizer.state() == {}


def test_a_state_of_another_model_is_refused():
    optimizer = AdamWConfig().build(_model(bias=False))
    other = AdamWConfig().build(model := _model(bias=True))
    _steps(model, other, 1, 0)
    with pytest.raises(ValueError, match="bias"):
        optimizer.load(other.state())


def test_impossible_rates_are_refused_by_name():
    with pytest.raises(UserError, match="lr"):
        load(OptimizerConfig, {"kind": "adamw", "lr": -1.0})
    with pytest.raises(UserError, match="beta"):
        load(OptimizerConfig, {"kind": "adamw", "betas": [0.9, 1.0]})
    with pytest.raises(UserError, match="momentum"):
        load(OptimizerConfig, {"kind": "muon", "momentum": 1.0})


def test_muon_splits_the_gates_of_a_recurrent_layer():
    model: Any = Seq2SeqConfig(width=16, attention=FixedConfig()).build()
    muon = MuonConfig().build(model).parts[0]
    assert isinstance(muon, Muon)
    gates = {p: (8, 8, 8) for p in model.encoder.parameters() if p.ndim == 2}
    gates |= {p: (16, 16, 16) for p in model.decoder.cells.parameters() if p.ndim == 2}
    assert muon.parts == gates
    assert len(gates) == 4 + 2
