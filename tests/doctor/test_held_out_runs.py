"""The doctor names held-out faults, one finding each, and finds nothing in held-out healthy runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from held_out import data_and_loss, models, optimization
from held_out.healthy import HEALTHY
from held_out.parts import HeldOut

from regard.config import to_toml
from regard.doctor import Doctor, Finding, examine
from regard.runs import Run
from regard.train import Experiment, train

FAULTS: dict[str, HeldOut] = {**data_and_loss.FAULTS, **optimization.FAULTS, **models.FAULTS}
QUICK = ("accumulation not divided", "validation alphabet", "rows permuted", "underflow in 16 bits")
QUICK_HEALTHY = ("translation", "first GPT")


def found(experiment: Experiment, folder: Path) -> list[Finding]:
    """What the doctor finds during the training and in the finished run."""
    doctor, run = Doctor(out=io.StringIO()), Run.create(folder, None, to_toml(experiment), {})
    train(experiment, run, [doctor])
    assert doctor.active, doctor._out.getvalue()  # type: ignore[union-attr]
    return examine(Run.open(run.path))[0]


def check(name: str, folder: Path) -> None:
    fault = FAULTS[name]
    findings = found(fault.make(folder), folder)
    named = [one for one in findings if one.kind == fault.kind and re.search(fault.where, one.where)]
    assert named, [(one.kind, one.where) for one in findings]
    assert len(findings) <= 2, [(one.kind, one.where) for one in findings]


@pytest.mark.parametrize("name", QUICK)
def test_it_names_a_held_out_fault(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in QUICK])
def test_it_names_the_other_held_out_faults(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", QUICK_HEALTHY)
def test_it_finds_nothing_in_a_held_out_healthy_run(name: str, tmp_path: Path) -> None:
    assert not [one.line() for one in found(HEALTHY[name](tmp_path), tmp_path)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HEALTHY if name not in QUICK_HEALTHY])
def test_it_finds_nothing_in_the_other_held_out_healthy_runs(name: str, tmp_path: Path) -> None:
    assert not [one.line() for one in found(HEALTHY[name](tmp_path), tmp_path)]
