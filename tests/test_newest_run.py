"""Commands without the name of a run: which run they take, and that they say so."""

import json
import os
from pathlib import Path

import pytest

from regard.cli import main
from regard.commands.common import open_run
from regard.errors import UserError
from regard.runs import Run, environment
from regard.runs.folder import CHAT

TRAINED = '[model]\nkind = "gpt"\n[data]\nkind = "characters"\n'
IMPORTED = '[model]\nkind = "gpt"\n[data]\nkind = "imported"\nsource = "hub"\n'


def make(name: str, config: str, age: int) -> Run:
    run = Run.create(Path("runs"), name, config, environment())
    os.utime(run.file("config.toml"), (10**9 - age, 10**9 - age))
    return run


def write_template(path: Path) -> None:
    path.write_text("{}")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_newest_trained_run_goes_before_a_newer_imported_one(room: Path, capsys: pytest.CaptureFixture[str]):
    make("old", TRAINED, 30)
    make("mine", TRAINED, 20)
    make("smollm2", IMPORTED, 10).add(CHAT, write_template)
    assert main(["info", "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["run"] == str(Path("runs", "mine"))
    assert done.err == f"the newest run: {Path('runs', 'mine')}\n"
    assert main(["info", "smollm2", "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["run"] == str(Path("runs", "smollm2"))
    assert done.err == ""
    chats = open_run(None, Path("runs"), preferred=lambda one: one.file(CHAT).exists())
    assert chats.name == "smollm2"


def test_an_imported_run_is_taken_if_there_is_no_other(room: Path):
    make("minilm", IMPORTED, 20)
    make("smollm2", IMPORTED, 10)
    assert open_run(None, Path("runs")).name == "smollm2"


def test_a_damaged_older_run_is_passed_over_and_a_damaged_newest_one_named(room: Path):
    make("mine", TRAINED, 30)
    damaged = make("damaged", TRAINED, 20)
    damaged.file("config.toml").write_text("[")
    os.utime(damaged.file("config.toml"), (10**9 - 20, 10**9 - 20))
    make("smollm2", IMPORTED, 10)
    assert open_run(None, Path("runs")).name == "mine"
    os.utime(damaged.file("config.toml"))
    with pytest.raises(UserError, match="damaged"):
        open_run(None, Path("runs"))


def test_an_imported_model_gives_the_doctor_nothing_to_examine(room: Path, capsys: pytest.CaptureFixture[str]):
    make("smollm2", IMPORTED, 10)
    assert main(["doctor", "smollm2"]) == 0
    out = capsys.readouterr().out
    assert "nothing to examine" in out
    assert "no faults" not in out
