"""Checks of the doctor on the load of experts and on gradients by layer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from check_kit import a_run, kinds
from torch import nn

from regard.doctor import Finding
from regard.doctor.check import explained
from regard.doctor.checks.experts import ExpertLoad
from regard.doctor.checks.gradients import ExplodingGradients, VanishingGradients
from regard.doctor.checks.learning_rate import LearningRateTooHigh
from regard.doctor.gradients import Gradients, LayerPart, layer_parts
from regard.nn.experts.moe import MoEConfig


def experts(layer: str, shares: list[float], gates: list[float], config: MoEConfig) -> list[Finding]:
    return list(ExpertLoad(a_run()).judge(layer, [shares, gates], config))


def test_experts() -> None:
    fair, mixture = [0.25] * 4, MoEConfig(experts=4, active=2, balance=0.01)
    assert experts("blocks.0", [0.25, 0.2, 0.3, 0.25], fair, mixture) == []
    lost = kinds(experts("a", [0.0, 0.3, 0.4, 0.3], [1e-6, 0.3, 0.4, 0.3], mixture))
    assert lost == [("expert_load", "a, expert 0")]
    nearly = [0.0, 0.3, 0.4, 0.3], [0.1, 0.3, 0.3, 0.3]  # selected, had its logit been a little higher
    assert experts("a", *nearly, mixture) == []
    assert kinds(experts("a", *nearly, replace(mixture, balance=0.0))) == [("expert_load", "a, expert 0")]
    assert kinds(experts("a", [0.2, 0.5, 0.2, 0.1], fair, mixture)) == [("expert_load", "a, expert 1")]
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


def test_gradients_that_explode_because_of_the_rate() -> None:
    """They are a consequence if the first one was small, and the loss has been higher since the first update."""
    exploded = Gradients({LayerPart("blocks", 0, "attention"): 500.0}, 600.0, {})

    def judged(norm: float, losses: list[float], update: float) -> list[str]:
        run = a_run()
        for step, loss in enumerate(losses, start=1):
            run.history.add(step, loss, 1.0, norm if step == 1 else 600.0)
        run.history.updates.append(update)
        checks = (ExplodingGradients(run), LearningRateTooHigh(run))
        found = [one for check in checks for one in (*check.on_gradients(exploded), *check.on_history(run.history))]
        return [one.kind for one in found if not explained(one, found)]

    thrown, fallen = [3.0, *[90.0] * 20], [3.0, 2.8, 2.6, *[90.0] * 18]
    assert judged(1.0, thrown, 0.4) == ["rate_too_high"]
    assert judged(500.0, thrown, 0.4) == ["exploding_gradients"]
    assert judged(1.0, fallen, 0.4) == ["exploding_gradients"]
    assert judged(1.0, thrown, 0.001) == ["exploding_gradients"]


def test_norms_are_those_before_clipping() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) / 2
    norms = Gradients.of(model, layer_parts(model), 10.0, 10.0).norms
    assert [part.name for part in norms] == ["0", "1"]
    assert math.hypot(*(norm or 0.0 for norm in norms.values())) == pytest.approx(10.0)
