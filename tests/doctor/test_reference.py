"""The statistics of healthy recipes, and runs that are unlike them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.commands.train import read_experiment
from regard.data import TextConfig
from regard.doctor import History, TrainingRun
from regard.doctor import reference as recorded
from regard.doctor.check import explained
from regard.doctor.checks.derivative import UpdateRaisesLoss
from regard.doctor.checks.steps import StepDiffers
from regard.doctor.checks.unusual import Unusual
from regard.doctor.context import token_entropies
from regard.doctor.reference import description, interpolate, reference_at
from regard.models import GPTConfig
from regard.train import Experiment, TrainConfig

RECIPE = ["--data.source", "plays", "--model.context", "64", "--data.batch", "8"]


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """A recipe with two recorded sizes."""
    found = read_experiment("shakespeare", RECIPE, 1)
    row = {"recipe": "shakespeare", **description(found), "steps": [1, 10, 100], "update": 0.05}
    small = {**row, "parameters": 1000, "loss": [1.0, 0.8, 0.6], "norm": [2.0, 1.0, 1.0]}
    large = {**row, "parameters": 4000, "loss": [1.0, 0.6, 0.4], "norm": [2.0, 1.0, 1.0]}
    monkeypatch.setattr(recorded, "rows", lambda: [small, large])
    return found


def test_steps_and_sizes_are_interpolated_over_their_logarithms(experiment: Experiment) -> None:
    assert interpolate([1, 10, 100], [1.0, 0.8, 0.6], 10) == pytest.approx(0.8)
    assert interpolate([1, 10, 100], [1.0, 0.8, 0.6], 32) == pytest.approx(0.7, abs=0.01)
    losses = [found.loss for size in (1000, 2000, 4000) if (found := reference_at(experiment, size, 10)) is not None]
    assert losses[1] == pytest.approx((losses[0] + losses[2]) / 2)
    assert losses[0] > losses[1] > losses[2]
    assert reference_at(experiment, 10**6, 10) is None  # no run of this size was recorded
    assert reference_at(experiment, 1000, 1000) is None  # nor such a late step
    assert reference_at(read_experiment("shakespeare", [*RECIPE, "--model.position", "none"], 1), 1000, 10) is None


def unusual(experiment: Experiment, losses: list[float], norm: float = 1.0) -> list[str]:
    class Small(torch.nn.Module):
        weight = torch.nn.Parameter(torch.zeros(1000))

        def parameters(self, recurse: bool = True) -> Any:
            return iter([self.weight])

    run = TrainingRun(experiment, model=Small())  # type: ignore[arg-type]
    history = History()
    for step, loss in enumerate(losses, 1):
        history.add(step, loss, 1e-3, norm)
    return [f"{one.where}: {one.cause[:13]}" for one in Unusual(run).on_history(history)]


def test_a_run_unlike_its_reference_is_unusual(experiment: Experiment) -> None:
    found = reference_at(experiment, 1000, 50)
    assert found is not None
    assert unusual(experiment, [found.loss + 0.2] * 55) == []
    assert unusual(experiment, [found.loss + 0.6] * 55) == ["the loss: I do not know"]
    assert unusual(experiment, [found.loss] * 55, norm=20.0) == ["the gradient: I do not know"]


def test_a_loss_no_better_than_single_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcd" * 3000)
    data = TextConfig(path=str(tmp_path / "text.txt"), validation=0.1)
    run = TrainingRun(Experiment(GPTConfig(vocabulary=4, context=16), data, train=TrainConfig(steps=200)))
    run.data = data.build(16)
    check = Unusual(run)
    for losses, found in (([1.385] * 200, 1), ([1.385 - 0.001 * i for i in range(200)], 0), ([0.1] * 200, 0)):
        assert len(list(check._context_ignored(losses))) == found


def test_entropies_of_tokens_and_pairs() -> None:
    draw = random.Random(1)
    alone, neighbors = token_entropies(torch.tensor([[draw.randrange(4) for _ in range(400)] for _ in range(20)]), 4)
    assert alone == pytest.approx(1.386, abs=0.01)
    assert neighbors == pytest.approx(alone, abs=0.01)
    alone, neighbors = token_entropies(torch.tensor([[1, 2, 3]]), 60)
    assert alone == neighbors  # too few


def test_an_unusual_run_is_reported_only_if_nothing_explains_it(tmp_path: Path) -> None:
    run = TrainingRun(Experiment())
    strange, known = Unusual(run).finding("", "e", "c", "x"), StepDiffers(run).finding("", "e", "c", "x")
    other = UpdateRaisesLoss(run).finding("", "e", "c", "x")
    assert explained(strange, [known])
    assert not explained(strange, [strange])
    assert not explained(known, [strange, other])


def test_recipes_are_recorded_in_two_sizes_at_most() -> None:
    from healthy_runs import OVERRIDES

    found = [row["recipe"] for row in recorded.rows()]
    assert set(found) <= set(OVERRIDES)
    assert len(set(found)) >= 16
    assert all(found.count(name) <= 2 for name in found)


def test_recorded_recipes_are_recognized() -> None:
    """A key that is new in the config of a recipe would make its reference unknown."""
    from healthy_runs import OVERRIDES, SHORT

    for row in recorded.rows():
        options = [*SHORT.split(), *OVERRIDES[row["recipe"]].split()]
        own = json.loads(json.dumps(description(read_experiment(row["recipe"], options, 1))))
        assert own["same"] == row["same"], row["recipe"]
