"""The doctor names the listed faults, leaves sound trainings alone, and never changes a training."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from data_faults import KINDS as DATA_KINDS
from healthy_runs import HEALTHY
from run_faults import FAULTS
from run_faults.kit import MIXTURE, Case, Ended, Fault, gpt, trained, training
from test_held_out_runs import FAULTS as HELD_OUT
from unusual_runs import UNUSUAL

from regard.commands.common import RunOptions
from regard.commands.doctor import doctor as command
from regard.commands.train import read_experiment
from regard.config import to_toml
from regard.doctor import Check, Doctor, Finding, all_checks, examine
from regard.doctor.check import known_findings
from regard.report.facts import Facts
from regard.report.page import doctor as doctor_section
from regard.report.page import finding_card
from regard.runs import Run
from regard.train import train


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are tokenized once for all tests of this file."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "doctor-cache"))


def watched(case: Case, folder: Path) -> tuple[Doctor, Ended]:
    """A case trained with a doctor, which must not have given up."""
    doctor = Doctor(case.limit, io.StringIO())
    ended = trained(case, folder, [doctor])
    assert doctor.active, doctor._out.getvalue()  # type: ignore[union-attr]
    return doctor, ended


def names(found: Any, fault: Fault) -> bool:
    return any(one.kind == fault.kind and re.search(fault.where, one.where) for one in found)


def check(fault: Fault, folder: Path) -> None:
    doctor, ended = watched(fault.make(folder), folder)
    found = doctor.findings.values()
    assert names(found, fault), [(one.kind, one.where) for one in found]
    assert all(one.evidence and one.cause and one.change and one.since <= one.step for one in found)
    # The folder has one record per finding, and examining it afterwards finds the same.
    assert set(known_findings(ended.run)) == {one.key for one in found}
    assert names(examine(Run.open(ended.run.path))[0], fault)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.quick], ids=lambda fault: fault.name)
def test_it_names_a_fault_and_its_place(fault: Fault, tmp_path: Path) -> None:
    check(fault, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.quick], ids=lambda fault: fault.name)
def test_it_names_the_other_faults_too(fault: Fault, tmp_path: Path) -> None:
    check(fault, tmp_path)


@pytest.mark.parametrize(
    ("model", "train"),
    [
        (gpt(), {}),
        (gpt(layers=2, dropout=0.1, feedforward=MIXTURE.feedforward), {"accumulate": 2}),
        (gpt(layers=2, dropout=0.1), {"precision": "bfloat16"}),
    ],
)
def test_it_finds_nothing_in_a_sound_training_and_does_not_change_a_bit(
    model: Any, train: dict[str, Any], tmp_path: Path
) -> None:
    case = Case(training(tmp_path, model=model, train={"steps": 30, "evaluate_every": 10, **train}))
    doctor, one = watched(case, tmp_path)
    other = trained(case, tmp_path)
    assert not doctor.findings
    assert doctor.examinations >= 3
    weights = other.engine.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in one.engine.model.state_dict().items())
    state = other.engine.optimizer.state()
    assert all(torch.equal(value, state[name]) for name, value in one.engine.optimizer.state().items())
    assert not examine(Run.open(one.run.path))[0]


@pytest.mark.slow
@pytest.mark.parametrize("line", HEALTHY)
def test_it_finds_nothing_in_a_healthy_recipe(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_CACHE")  # texts of recipes are in the user's own
    name, _, seed, *overrides = line.split()
    experiment = read_experiment(name, overrides, int(seed))
    doctor = Doctor(out=io.StringIO())
    train(experiment, Run.create(tmp_path, None, to_toml(experiment), {}), [doctor])
    assert doctor.active
    assert not [one.line() for one in doctor.findings.values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSUAL)
def test_it_finds_nothing_in_an_unusual_healthy_run(name: str, tmp_path: Path) -> None:
    doctor, ended = watched(Case(UNUSUAL[name](tmp_path)), tmp_path)
    assert ended.error is None
    assert not [one.line() for one in doctor.findings.values()]
    assert not [one.line() for one in examine(Run.open(ended.run.path))[0]]


def test_a_finding_is_told_once_and_brought_up_to_date(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no causal mask")
    doctor, ended = watched(fault.make(tmp_path), tmp_path)
    said = doctor._out.getvalue()  # type: ignore[union-attr]
    assert said.count(all_checks()["mask_fault"].description) == 1
    (record,) = [record for record in ended.run.findings() if record["kind"] == "mask_fault"]
    assert record["since"] < record["step"] == 60
    ended.run.rewind(record["since"])
    assert [one["step"] for one in ended.run.findings() if one["kind"] == "mask_fault"] == [record["since"]]


def test_a_doctor_who_fails_does_not_end_the_training(tmp_path: Path) -> None:
    def refuse(engine: Any) -> None:
        def hook(module: Any, given: Any) -> None:
            assert module.training, "I am only for training"

        engine.model.blocks[0].register_forward_pre_hook(hook)

    experiment = training(tmp_path, validation=0.0, train={"steps": 6, "evaluate_every": None})
    doctor = Doctor(out=io.StringIO())
    ended = trained(Case(experiment, refuse), tmp_path, [doctor])
    assert ended.error is None
    assert "the doctor gave up" in doctor._out.getvalue()  # type: ignore[union-attr]


def test_the_command_tells_what_is_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(training(tmp_path, train={"steps": 12}))
    _, ended = watched(case, tmp_path)
    assert command(RunOptions(run=str(ended.run.path))) == 0
    assert "no faults found" in capsys.readouterr().out
    finding = Finding("memory", "data.batch", "3.9 of 4 GiB", "it grows with it", "--data.batch 4", 12, 8)
    ended.run.add_finding(finding.record())
    assert command(RunOptions(run=str(ended.run.path), json=True)) == 1
    (record,) = json.loads(capsys.readouterr().out)["findings"]
    assert Finding.read(record) == finding
    assert command(RunOptions(run=str(ended.run.path))) == 1
    assert "--data.batch 4" in capsys.readouterr().out


def test_the_report_escapes_what_it_is_told() -> None:
    finding = Finding("dead_units", "<b>", "1 < 2", "a & b", "--x", 3, 1)
    html = finding_card(finding.record())
    assert "&lt;b&gt;" in html
    assert "1 &lt; 2" in html
    assert "<b>" not in html
    assert doctor_section(Facts("run", "runs/run", {})) == ""


def test_what_is_no_finding_is_not_read_as_one() -> None:
    whole = Finding("memory", "", "a", "b", "c", 1, 1).record()
    assert Finding.read(whole) is not None
    assert Finding.read({**whole, "kind": 3}) is None
    assert Finding.read({**whole, "since": "x"}) is None
    assert Finding.read({"step": 3}) is None


def test_every_check_is_described_and_has_a_fault() -> None:
    checks = {kind: check for kind, check in all_checks().items() if check.__module__.startswith("regard.")}
    trained = {fault.kind for fault in [*FAULTS, *HELD_OUT.values()]}
    alone = {"unusual", "wrong_stop", "slow_rank"}  # test_reference.py, test_curve_checks.py, test_resource_checks.py
    assert trained | DATA_KINDS | alone == set(checks)
    assert all(check.description and check.description != kind for kind, check in checks.items())


def test_a_check_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Check, "registry", dict(all_checks()))

    class FirstLoss(Check):
        kind, description = "first_loss", "there is a loss"
        needs_confirmation = True

        def on_history(self, history: Any) -> Any:
            yield self.finding("", f"the loss was {history.losses[0]:.2f}", "training", "--train.steps 0")

    doctor, ended = watched(Case(training(tmp_path, train={"steps": 6})), tmp_path)
    (finding,) = doctor.findings.values()
    assert (finding.kind, finding.what) == ("first_loss", "there is a loss")
    assert finding.since == 4  # the second of three examinations confirms it
    with pytest.raises(TypeError, match="'mask_fault' is registered by"):
        type("Other", (Check,), {"kind": "mask_fault", "description": "another"})
    del Check.registry["first_loss"]  # as in a process without the file that defines the check
    (record,) = ended.run.findings()
    assert Finding.read(record) == finding
    assert [one.what for one in examine(ended.run)[0]] == ["there is a loss"]


def test_a_cause_that_is_never_confirmed_hides_its_consequences_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Check, "registry", {})

    class Wandering(Check):
        kind, description = "wandering", "another layer at each examination"
        needs_confirmation = True

        def on_history(self, history: Any) -> Any:
            yield self.finding(f"layer{history.last}", "seen once here", "none", "none")

    class Consequence(Check):
        kind, description = "consequence", "a consequence"
        rank, follows = 2, ("wandering",)

        def on_history(self, history: Any) -> Any:
            yield self.finding("", "always", "the wandering one", "none")

    doctor, _ = watched(Case(training(tmp_path, train={"steps": 6})), tmp_path)
    assert [(one.kind, one.since) for one in doctor.findings.values()] == [("consequence", 4)]


def test_a_resumed_training_does_not_tell_again_what_is_known(tmp_path: Path) -> None:
    experiment = training(tmp_path, train={"steps": 6, "save_every": 3})
    run = Run.create(tmp_path, None, to_toml(experiment), {})
    train(experiment, run, [Doctor(limit=2**20, out=io.StringIO())])
    assert [record["kind"] for record in run.findings()] == ["memory"]
    longer = replace(experiment, train=replace(experiment.train, steps=9))
    again = Doctor(limit=2**20, out=io.StringIO())
    train(longer, Run.open(run.path), [again], resume=True)
    output = again._out.getvalue()  # type: ignore[union-attr]
    assert re.fullmatch(r"doctor: 1 found, see regard doctor \S+ \(3 examinations, [\d.]+ s\)\n", output)
    assert len(run.findings()) == 1
