"""The initial model of an experiment, with adapters and from a trained one: its recording gives the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.parallel.sharded_build import fill, named_tensors, recorded
from regard.train import Experiment, TrainConfig
from regard.train.adapt import AdaptConfig, FrozenConfig, FullConfig, LayerwiseConfig, LoRAConfig, QLoRAConfig
from regard.train.pretrained import initial_model

GPT = GPTConfig(vocabulary=29, context=8, layers=2, heads=2, width=16, zero_init=False, tied=True)
ADAPTS = [FullConfig(), LayerwiseConfig(freeze=1), FrozenConfig(trained=("blocks",)), LoRAConfig(rank=2)]


def experiment(adapt: AdaptConfig) -> Experiment:
    return Experiment(GPT, TextConfig(), train=TrainConfig(adapt=adapt), seed=5)


def trained() -> dict[str, Tensor]:
    """The weights of another model."""
    torch.manual_seed(0)
    return {name: x.double() for name, x in GPT.build().state_dict().items()}


@pytest.mark.parametrize("adapt", ADAPTS, ids=lambda adapt: adapt.kind)
@pytest.mark.parametrize("start", [False, True], ids=["random", "start"])
def test_it_has_the_bits_of_one_process(adapt: AdaptConfig, start: bool) -> None:
    given = trained() if start else None
    plain = named_tensors(initial_model(experiment(adapt), given))
    model, initial = recorded(partial(initial_model, experiment(adapt)), given)
    assert initial.reason == ""
    fill(model, initial, torch.device("cpu"))
    ours = named_tensors(model)
    assert list(ours) == list(plain)
    for name, x in ours.items():
        assert (x.dtype, x.requires_grad) == (plain[name].dtype, plain[name].requires_grad), name
        assert torch.equal(x, plain[name]), name
    if given is not None:
        assert all(torch.equal(ours[name], x.float()) for name, x in given.items())


def test_no_random_number_is_drawn_for_weights_that_are_given() -> None:
    model, initial = recorded(partial(initial_model, experiment(FullConfig())), trained())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    fill(model, initial, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)


def test_quantized_matrices_depend_on_values_and_are_made_from_whole_ones(capsys: pytest.CaptureFixture[str]) -> None:
    adapted = experiment(QLoRAConfig(rank=2))
    plain = named_tensors(initial_model(adapted, trained()))
    model, initial = recorded(partial(initial_model, adapted), trained(), say=True)
    assert initial.reason
    assert "each rank builds the whole model" in capsys.readouterr().err
    fill(model, initial, torch.device("cpu"))
    assert all(torch.equal(x, plain[name]) for name, x in named_tensors(model).items())


def test_the_weights_do_not_depend_on_the_generator_before() -> None:
    wanted = experiment(FullConfig())
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model, initial = recorded(partial(initial_model, wanted))
        torch.manual_seed(seed + 2)
        fill(model, initial, torch.device("cpu"))
        found.append(named_tensors(model))
    assert all(torch.equal(x, found[1][name]) for name, x in found[0].items())
    other, initial = recorded(partial(initial_model, replace(wanted, seed=6)))
    fill(other, initial, torch.device("cpu"))
    assert not all(torch.equal(x, found[0][name]) for name, x in named_tensors(other).items())
