"""A search: equal FLOPs, stages in order, the default first and last, it continues, and it says whether it gained."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import optuna
import pytest
from tests.trials.test_trials import SMALL

from regard.commands.train import read_experiment
from regard.config import override
from regard.errors import UserError
from regard.recipes import recipe
from regard.train import Experiment, MuonConfig
from regard.trials import Outcome
from regard.tune import STAGES, DefaultComparison, TuneResult, search, tune, write_page
from regard.tune.page import words
from regard.tune.space import OptionRange, Options, changed, step_flops, values_of, with_flops

FLOPS = 4e7


def small(*changes: str) -> Experiment:
    return override(recipe("toy-copy", *SMALL), changes)


def data_of(experiment: Experiment):
    return experiment.data.build(experiment.model.context)


def loss_of(experiment: Experiment) -> float:
    """A made-up loss: a higher rate and a smaller batch are better than the default's, and the seed adds a little."""
    optimizer = experiment.train.optimizer
    assert isinstance(optimizer, MuonConfig)
    rate = math.log(optimizer.lr / 0.08) ** 2 + math.log(optimizer.rest_lr / 4e-3) ** 2
    return 1 + 0.1 * rate + 0.01 * math.log(experiment.data.batch / 2) ** 2 + 0.001 * (experiment.seed % 7)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """Trials that have the made-up loss at once, and are not traced for FLOPs; the experiments that were trained."""
    found: list[Experiment] = []

    def run_trial(folder, trial, observers=()):
        found.append(trial.experiment)
        return Outcome(folder, loss_of(trial.experiment), 1, 1, 1.0)

    monkeypatch.setattr(search, "run_trial", run_trial)
    monkeypatch.setattr(search, "with_flops", lambda experiment, data, flops: experiment)
    monkeypatch.setattr(search, "train_trials", lambda trials, folder, say: [(x, run_trial(folder, x)) for x in trials])
    return found


def run(folder: Path, trials: int = 15, experiment: Experiment | None = None) -> TuneResult:
    experiment = small("--train.optimizer.kind=muon") if experiment is None else experiment
    return tune(experiment, data_of(experiment), FLOPS, folder, trials, seeds=3, say=lambda line: None)


@pytest.mark.parametrize("changes", [{}, {"data.batch": 8}, {"model.width": 32}, {"model.layers": 3}])
def test_every_trial_has_the_same_flops(changes: Mapping[str, int]) -> None:
    experiment = changed(small(), changes)
    data = data_of(experiment)
    step = step_flops(experiment, data)
    found = with_flops(replace(experiment, train=replace(experiment.train, steps=None, tokens=5)), data, 40.3 * step)
    assert (found.train.steps, found.train.tokens) == (40, None)


def test_the_spaces_hold_the_experiments_own_values() -> None:
    experiment = small("--train.optimizer.kind=muon", "--train.dropout=0.07")
    for stage, space in STAGES.items():
        found = space(experiment)
        assert found, stage
        for key, value in values_of(experiment, found).items():
            one = found[key]
            inside = one.low <= value <= one.high if isinstance(one, OptionRange) else value in one.values
            assert inside, key
    assert set(STAGES["learning rate"](experiment)) == {"train.optimizer.lr", "train.optimizer.rest_lr"}


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-small", "shakespeare-lstm", "shakespeare-conv", "digits"])
def test_every_architecture_of_the_space_is_possible(name: str) -> None:
    experiment = recipe(name)
    space = STAGES["architecture"](experiment)
    assert space
    for key, one in space.items():
        assert isinstance(one, Options)
        for value in one.values:
            others = {"model.width": space["model.width"].values[0]} if key == "model.heads" else {}  # type: ignore[union-attr]
            changed(experiment, {**others, key: value})


def test_a_search_goes_stage_by_stage_from_the_default_and_finds_what_is_better(tmp_path: Path, trained) -> None:
    result = run(tmp_path, 40)
    assert [stage.name for stage in result.stages] == list(STAGES)
    default = result.default
    assert trained[0] == default
    assert trained[0].train.optimizer == small("--train.optimizer.kind=muon").train.optimizer
    assert len(trained) <= 41 + 6
    losses = [stage.loss for stage in result.stages]
    assert losses == sorted(losses, reverse=True)
    assert loss_of(result.best) == pytest.approx(losses[-1])
    assert losses[-1] < loss_of(default) - 0.1
    for before, stage in zip(result.stages, result.stages[1:], strict=False):
        assert stage.tried[0].loss == before.loss
    assert result.comparison is not None
    seeds = [one.seed for one in trained[-6:]]
    assert seeds == [1001, 1002, 1003] * 2
    assert 1 not in seeds
    assert result.comparison.beats
    rates = sum(result.importance[key] for key in ("train.optimizer.lr", "train.optimizer.rest_lr"))
    assert sum(result.importance.values()) == pytest.approx(1)
    assert rates > 0.4  # of eight keys; 0.55 to 0.87 with six seeds


def test_the_same_command_continues_and_trains_nothing_twice(tmp_path: Path, trained) -> None:
    whole = run(tmp_path / "whole")
    trained.clear()
    assert run(tmp_path / "whole").record() == whole.record()
    assert len(trained) == 6  # those of the comparison, which the replaced pool does not keep


def test_an_interrupted_trial_is_tried_again_with_the_same_values(
    tmp_path: Path, trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder, trial, observers=()):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search, "run_trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    result = run(tmp_path)
    assert trained[0] == result.default
    assert [one.state for one in result.stages[0].tried][:2] == ["failed", "done"]


def test_trials_that_diverge_are_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        search, "run_trial", lambda folder, trial, observers: Outcome(folder, math.inf, 1, 1, 1.0, "diverged at step 1")
    )
    with pytest.raises(UserError, match="learning rate"):
        run(tmp_path)


def test_words_say_whether_the_default_is_beaten(tmp_path: Path, trained) -> None:
    result = run(tmp_path)
    better, unclear, worse = (
        DefaultComparison([2.0, 2.1, 2.2], [one + gain for one, gain in zip([2.0, 2.1, 2.2], gains, strict=True)])
        for gains in ([-0.1, -0.11, -0.12], [-0.1, 0.1, 0.0], [0.1, 0.11, 0.12])
    )
    for comparison, said in (
        (better, "beats the default"),
        (unclear, "did not beat the default: the 95 % interval"),
        (worse, "did not beat the default: it is worse"),
        (DefaultComparison([2.0, 2.1], [1.9, math.inf]), "did not beat the default"),
        (None, "No trial had a lower loss"),
    ):
        assert any(said in line for line in words(replace(result, comparison=comparison)))
    assert [one.beats for one in (better, unclear, worse)] == [True, False, False]
    json.dumps(replace(result, comparison=DefaultComparison([2.0, 2.1], [1.9, math.inf])).record(), allow_nan=False)


def test_the_best_configuration_is_a_file_that_train_reads(tmp_path: Path, trained) -> None:
    result = run(tmp_path)
    page = write_page("toy-copy", result, tmp_path)
    assert read_experiment(str(tmp_path / "best.toml"), {}) == result.best
    for name in ("Trials", "Importance", "Loss against train.optimizer.lr"):
        assert name in page.read_text()
    saved = json.loads((tmp_path / "tune.json").read_text())
    assert saved["comparison"]["beats"]
    assert fmean(saved["comparison"]["default"]) > fmean(saved["comparison"]["best"])


def test_a_trial_that_is_worse_than_the_median_ends_early() -> None:
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=2))
    ended = []
    for loss in (1.0, 1.1, 5.0, 0.9):
        trial = study.ask()
        observer = search.Pruning(trial)
        observer.steps = 100
        try:
            for step in (25, 50, 75, 100, 100):  # the last one twice, as at the end of a training
                observer.evaluated(step, {"validation_loss": loss})
            study.tell(trial, loss)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            ended.append(loss)
    assert ended == [5.0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"stages": ["rate"]}, "--stages"), ({"trials": 4}, "--trials"), ({"stages": []}, "--trials")],
)
def test_impossible_searches_are_refused(tmp_path: Path, wrong: dict, said: str) -> None:
    experiment = small()
    with pytest.raises(UserError, match=said):
        tune(experiment, data_of(experiment), FLOPS, tmp_path, **wrong)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'regard\[tune\]'"):
        search.require_optuna()


@pytest.mark.slow
def test_trials_are_trained(tmp_path: Path) -> None:
    experiment = small("--train.optimizer.kind=muon")
    data = data_of(experiment)
    result = tune(experiment, data, FLOPS, tmp_path, 5, seeds=2, say=lambda line: None)
    assert all(one.loss is not None or one.state == "pruned" for stage in result.stages for one in stage.tried)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    again = tune(experiment, data, FLOPS, tmp_path, 5, seeds=2, say=lambda line: None)
    assert again.record() == result.record()
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
