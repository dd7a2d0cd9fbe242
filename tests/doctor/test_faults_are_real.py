"""Every fault of the table is one: its training shows it, and the same training without it does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from healthy_runs import HEALTHY
from run_faults import FAULTS
from run_faults.kit import Case, Fault, Record, Seen, trained

from regard import recipes
from regard.commands.train import read_experiment
from regard.config import to_toml


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that equal trainings have equal configs."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def watch(folder: Path) -> Callable[[Case], Seen]:
    """Trains a case; equal trainings without a fault only once."""
    sound: dict[str, Seen] = {}

    def trainer(case: Case) -> Seen:
        key = to_toml(case.experiment)
        if case == case.cured() and key in sound:
            return sound[key]
        record = Record()
        seen = Seen(case, record, trained(case, folder, [record]))
        if case == case.cured():
            sound[key] = seen
        return seen

    return trainer


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if fault.quick else pytest.mark.slow) for fault in FAULTS],
    ids=lambda fault: fault.name,
)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, folder: Path, watch: Callable[[Case], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    case = fault.make(folder)
    assert fault.shows(watch(case)), "the training does not show it"
    seen = watch(case.cured())
    assert seen.ended.error is None
    assert seen.record.losses[-1] < seen.record.losses[0] - 0.3, "the sound training does not learn"
    assert not fault.shows(seen), "the sound training shows it too"


def test_the_table_is_complete() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= 65
    assert sum(fault.listed for fault in FAULTS) == 25
    assert {fault.kind for fault in FAULTS if fault.listed} < {fault.kind for fault in FAULTS}
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in FAULTS)


def test_every_recipe_has_healthy_runs_with_three_seeds() -> None:
    """Each line is one that `regard train` takes."""
    found = []
    for line in HEALTHY:
        name, option, seed, *overrides = line.split()
        assert option == "--seed"
        experiment = read_experiment(name, overrides, int(seed))
        assert (experiment.train.steps or 0) <= 200
        assert experiment.train.seconds is None
        found.append((name, experiment.seed))
    own = [name for name in recipes.names() if recipes.get(name).init is None]  # others start from published models
    assert sorted(found) == [(name, seed) for name in own for seed in (1, 2, 3)]
