"""Ladders: sizes, lengths and rates are as asked for; the prediction comes before the larger model; it continues."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trials.test_trials import SMALL

from regard.config import override
from regard.errors import UserError
from regard.models import GPTConfig, describe
from regard.plan.size import nearest_width
from regard.recipes import recipe
from regard.scale import ladder, scale, write_page
from regard.scale import test as prediction
from regard.scale.ladder import count
from regard.scale.page import words
from regard.train import AdamWConfig, Experiment
from regard.trials import Outcome, Trial

SIZES = {"largest": 5000, "tokens": [64, 128, 256], "sizes": 3}


def tiny(*changes: str) -> Experiment:
    return override(recipe("toy-copy", *SMALL), ["--data.batch=2", *changes])


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-lstm", "shakespeare-conv"])
def test_only_the_width_changes_with_the_size(name: str) -> None:
    model = recipe(name).model
    for factor in (0.1, 0.5, 4):
        found = nearest_width(model, describe(model)["parameters"] * factor)
        heads = {"heads": model.heads} if isinstance(model, GPTConfig) else {}
        assert replace(found, width=model.width, **heads) == model
        assert describe(found)["parameters"] == pytest.approx(describe(model)["parameters"] * factor, rel=0.25)


def test_sizes_lengths_and_seeds():
    made = ladder(tiny("--model.heads=1"), seeds=2, larger=3.0, **SIZES)
    sizes = sorted({one.parameters for one in made.rungs})
    assert len(made.rungs) == 3 * 3 * 2
    assert len(made.larger) == 2
    assert sizes == pytest.approx([1250, 2500, 5000], rel=0.2)
    assert made.larger[0].parameters == pytest.approx(3 * sizes[-1], rel=0.2)
    for one in (*made.rungs, *made.larger):
        experiment = one.trial.experiment
        assert experiment.train.steps == one.steps
        assert one.tokens == round(one.steps * made.each)
        assert count(experiment.model) == one.parameters
        assert experiment.train.evaluate_every is None
    assert sorted({one.tokens for one in made.rungs}) == pytest.approx([64, 128, 256], abs=made.each)
    assert {one.tokens for one in made.larger} == {max(one.tokens for one in made.rungs)}
    assert {one.trial.experiment.seed for one in made.larger} == {1, 2}


def test_the_longest_training_is_the_recipes_own_by_default():
    made = ladder(tiny("--model.heads=1", "--train.steps=40"), sizes=3, largest=5000)
    assert sorted({one.steps for one in made.rungs}) == [5, 10, 20, 40]


def test_rates_follow_the_width_with_adamw_and_stay_with_muon():
    made = ladder(tiny("--model.heads=1", "--train.optimizer.kind=adamw", "--train.optimizer.lr=1e-2"), **SIZES)
    for one in made.rungs:
        found = one.trial.experiment
        assert isinstance(found.train.optimizer, AdamWConfig)
        assert found.train.optimizer.lr * found.model.width == pytest.approx(1e-2 * 16)
    made = ladder(tiny("--model.heads=1", "--train.optimizer.kind=muon"), **SIZES)
    assert len({one.trial.experiment.train.optimizer for one in made.rungs}) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sizes": 2}, "--sizes"),
        ({"seeds": 0}, "--seeds"),
        ({"ratio": 1.0}, "--ratio"),
        ({"tokens": [64, 128]}, "--tokens"),
        ({"tokens": [1, 2, 3]}, "numbers of steps"),
        ({"largest": 0}, "--largest"),
        ({"ratio": 1.001}, "same model"),
    ],
)
def test_what_gives_no_law_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ladder(tiny("--model.heads=1"), **(SIZES | wrong))


def test_the_time_is_that_of_the_steps():
    made = replace(ladder(tiny("--model.heads=1"), **SIZES), each=1e9)
    timed = replace(made, seconds={one.parameters: 2.0 for one in made.rungs})
    steps = sum(one.steps for one in made.rungs)
    assert timed.estimate(made.rungs, 1) == pytest.approx(2 * steps, rel=1e-3)
    assert timed.estimate(made.rungs, 4) == pytest.approx(steps / 2, rel=1e-3)
    assert timed.estimate([], 4) == 0


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[Trial]]:
    """Trials that have the losses of a law at once; the calls are recorded."""
    calls: list[list[Trial]] = []

    def train_trials(trials, folder, workers, say):
        calls.append(list(trials))
        for one in trials:
            size, steps = count(one.experiment.model), one.experiment.train.steps
            if len(calls) == 2:  # the larger model: its prediction is already there
                assert json.loads((folder / prediction.PREDICTION).read_text())["target"]["parameters"] == size
            yield one, Outcome(folder, 1 + 30 / size**0.4 + 5 / (steps * 4) ** 0.5, steps, steps * 4, 1.0)

    monkeypatch.setattr(prediction, "train_trials", train_trials)
    return calls


def test_the_prediction_is_written_before_the_larger_model_is_trained(tmp_path: Path, trained) -> None:
    made = ladder(tiny("--model.heads=1"), **SIZES)
    result = scale(made, tmp_path, say=lambda line: None)
    assert [len(trials) for trials in trained] == [9, 1]
    assert trained[0][0].experiment.train.steps == max(one.steps for one in made.rungs)  # the longest first
    assert abs(result.error) < 0.02
    record = json.loads((tmp_path / prediction.PREDICTION).read_text())
    assert record["prediction"]["value"] == result.prediction.value
    assert "tested" not in record
    page = write_page("toy-copy", made, result, tmp_path)
    assert "within 2%" in page.read_text()
    saved = json.loads(page.with_suffix(".json").read_text())
    assert saved["result"] == result.result
    assert saved["error"] == result.error


def test_words_say_when_the_prediction_is_off(tmp_path: Path, trained) -> None:
    made = ladder(tiny("--model.heads=1"), **SIZES)
    found = scale(made, tmp_path, say=lambda line: None)
    [one] = found.tested
    worse = replace(found, tested=[one._replace(outcome=one.outcome._replace(loss=one.outcome.loss * 1.1))])
    assert worse.error < -0.05
    assert any(
        f"{worse.error:.2%}" in line and "not within 2%" in line and "outside" in line for line in words(made, worse)
    )
    failed = replace(found, tested=[one._replace(outcome=one.outcome._replace(loss=float("inf"), problem="diverged"))])
    assert any("diverged" in line for line in words(made, failed))
    assert failed.record()["result"] is None


@pytest.mark.slow
def test_a_ladder_is_trained_and_continues(tmp_path: Path) -> None:
    made = ladder(tiny("--model.heads=1"), **SIZES)
    said: list[str] = []
    first = scale(made, tmp_path, workers=2, test=False, say=said.append)
    assert len(said) == 10
    before = (tmp_path / prediction.PREDICTION).stat().st_mtime_ns
    again = scale(made, tmp_path, workers=2, say=said.append)
    assert len(said) == 12  # the prediction, and the larger model alone
    assert again.prediction == first.prediction
    assert (tmp_path / prediction.PREDICTION).stat().st_mtime_ns == before
    assert len(again.tested) == 1
