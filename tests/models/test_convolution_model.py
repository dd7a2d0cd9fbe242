"""The convolutional language model: what it refuses, how it starts, how it compiles and decodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.attention import Packed, Slots
from regard.config import load
from regard.errors import UserError
from regard.generate import Sampling, sampling_decoder
from regard.models import ConvolutionConfig, ModelConfig

SMALL = ConvolutionConfig(vocabulary=11, context=12, layers=3, width=8, cycle=2)


def tokens(rows: int = 2, length: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kernel": 0}, "kernel must be at least 1, not 0"),
        ({"cycle": 0}, "cycle must be at least 1, not 0"),
        ({"unit": "relu"}, "there is no unit 'relu'; choose from gated, relu2"),
        ({"ratio": 0.01}, "ratio 0.01 of a width of 8 is no hidden unit"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"layers": 40, "cycle": 40}, "exceed any text"),
    ],
)
def test_impossible_configs(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()
    with pytest.raises(UserError):
        load(ModelConfig, {"kind": "convolution", "width": 8, **change})


def test_slots_in_any_order_are_refused() -> None:
    order = torch.arange(6)[None]
    with pytest.raises(UserError, match="from left to right"):
        SMALL.build()(tokens(), Slots(order, torch.zeros_like(order), order))


def test_dilations_double_and_begin_again() -> None:
    config = replace(SMALL, layers=7, cycle=3, kernel=3)
    assert config.dilations() == [1, 2, 4, 1, 2, 4, 1]
    assert config.receptive_field == 1 + 2 * 15


@pytest.mark.parametrize("zero", [True, False])
def test_zero_init_starts_every_block_as_the_identity(zero: bool) -> None:
    model = replace(SMALL, zero_init=zero).build()
    assert torch.equal(model.features(tokens()), model.norm(model.embed(tokens()))) == zero


@pytest.mark.parametrize("unit", ["gated", "relu2"])
@pytest.mark.parametrize("slots", [None, Packed.of([[2, 4], [5]], 6)])
def test_a_compiler_takes_all_of_it(unit: Any, slots: Any) -> None:
    model = replace(SMALL, unit=unit, zero_init=False).build()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens(), slots), model(tokens(), slots))


def test_recomputing_blocks_changes_nothing() -> None:
    model, grads = replace(SMALL, dropout=0.3, zero_init=False).build().train(), []
    for again in (False, True):
        model.checkpointing = again
        torch.manual_seed(3)
        grads.append(torch.autograd.grad(model(tokens()).sum(), list(model.parameters())))
    for plain, recomputed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_ragged_prompts_together_equal_one_by_one() -> None:
    model = replace(SMALL, zero_init=False, kernel=3, context=12).build().eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [4]]
    warm = Sampling(temperature=1.0)
    together = torch.stack(list(sampling_decoder(model, prompts, 20, warm, streams=range(4))), 1).tolist()
    for row, prompt in enumerate(prompts):
        alone = sampling_decoder(model, [prompt], 20, warm, streams=[row])
        assert together[row] == [int(token) for token in alone]
    assert len(set(map(tuple, together))) == 4
