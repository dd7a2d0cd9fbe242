"""Whatever decides an answer is checked when a run is loaded: config, tokenizer, checkpoint and sizes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from received_kit import TEXT, copy, make

from regard.cli import main
from regard.config import load, to_toml
from regard.errors import UserError
from regard.generate.load import load_model
from regard.models import GPTConfig, ModelConfig
from regard.models.shapes import fits
from regard.runs import Run, manifest, waiting


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("checked"))


@pytest.fixture
def received(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run; the current folder is the one it was started in."""
    path = copy(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(waiting, "_said", set())
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def swap_ids(run: Path) -> None:
    """Two characters of the vocabulary change places, so that every answer changes."""
    path = run / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["t"], vocabulary["o"] = vocabulary["o"], vocabulary["t"]
    path.write_text(json.dumps(content), encoding="utf-8")


CHANGES: dict[str, Callable[[Path], None]] = {
    "tokenizer.json": swap_ids,
    "config.toml": lambda run: edit(run / "config.toml", "base = 10000.0", "base = 20000.0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_would_alter_answers_is_refused_with_the_file_and_the_fix(
    received: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["generate", "one", "--tokens", "3"]) == 0
    CHANGES[name](received)
    capsys.readouterr()
    assert main(["generate", "one", "--tokens", "3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"runs/one/{name} is not the file that the run wrote" in err
    assert "restore it from a copy" in err
    assert "remove runs/one/MANIFEST.json" in err


def test_the_manifest_lists_the_sha256_that_other_programs_compute(received: Path):
    listed = json.loads((received / "MANIFEST.json").read_text())["files"]
    assert listed == {
        name: [hashlib.sha256((received / name).read_bytes()).hexdigest()] for name in ("config.toml", "tokenizer.json")
    }


def test_a_run_of_an_older_version_loads_and_says_once_that_it_is_not_checked(
    received: Path, capsys: pytest.CaptureFixture[str]
):
    (received / "MANIFEST.json").unlink()
    for _ in range(2):
        load_model(Run.open(received))
    assert capsys.readouterr().err.count("has no MANIFEST.json") == 1
    assert main(["resume", "one", "--steps", "5"]) == 0
    assert (received / "MANIFEST.json").exists()


@pytest.mark.parametrize("killed", ["allow", "replace", "settle"])
def test_a_run_killed_while_its_config_is_replaced_stays_whole(
    received: Path, killed: str, monkeypatch: pytest.MonkeyPatch
):
    run = Run.open(received)
    old = run.config
    new = to_toml(run.load(GPTConfig, "model"))

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        module, name = {"allow": (manifest, "allow"), "replace": (os, "replace"), "settle": (manifest, "settle")}[
            killed
        ]
        if killed == "replace":  # of the config; that of the manifest comes first
            real = os.replace
            patch.setattr(os, "replace", lambda a, b: die() if str(b).endswith(".toml") else real(a, b))
        else:
            patch.setattr(module, name, die)
        with pytest.raises(Killed):
            run.replace_config(new)
    again = Run.open(received)
    assert again.config == (old if killed != "settle" else Run(received, again.config).config)
    again.replace_config(new)
    assert len(json.loads((received / "MANIFEST.json").read_text())["files"]["config.toml"]) == 1


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[]", b'{"schema": 1}', b'{"schema": 9, "files": {}}', b'{"schema": 1, "files": {"config.toml": 3}}'],
)
def test_a_damaged_manifest_is_one_sentence(received: Path, damage: bytes):
    (received / "MANIFEST.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"MANIFEST\.json is damaged \(.*\); restore it from a copy, or remove it"):
        Run.open(received)


COMMANDS = {
    "generate": ["--tokens", "2"],
    "look": ["--text", "to be"],
    "doctor": [],
    "evaluate": ["--part", "train"],
    "prove": ["--claims", "future"],
    "report": [],
    "info": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_newest_checkpoint_is_reported(received: Path, command: str, capsys: pytest.CaptureFixture[str]):
    weights = received / "checkpoints" / "step-000004" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code = main([command, "one", "--json", *COMMANDS[command]])
    out, err = capsys.readouterr()
    damage = "checkpoint step-000004 is damaged: model.safetensors does not have the SHA-256 in its manifest"
    assert code in (0, 1), err  # 1: the doctor or a claim found something
    assert json.loads(out)["damaged"] == [damage]
    if command == "info":
        assert main(["info", "one"]) == 0
        assert damage in capsys.readouterr().out
    else:
        assert f"runs/one: {damage}; taking step 2 instead" in err


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 10**12},
        {"layers": 100_000},
        {"width": 2**40},
        {"vocabulary": 10**15},
        {"context": 10**14, "position": {"kind": "learned"}},
        {"position": {"kind": "t5", "furthest": 10**13}},
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(received: Path, change: dict[str, Any]):
    run = Run.open(received)
    checkpoint = run.latest()
    assert checkpoint is not None
    config = load(ModelConfig, run.table("model"))
    assert fits(config, checkpoint.shapes())
    run.config["model"] = {**run.table("model"), **change}
    with pytest.raises(UserError, match=r"does not fit .*config\.toml"):
        load_model(run)


@pytest.mark.parametrize("state", ["{}", '{"position": []}', '{"position": "4", "tokens": -1}', '{"position": 1e40}'])
@pytest.mark.parametrize("command", [["doctor", "one"], ["resume", "one", "--steps", "6"]])
def test_wrong_types_in_the_state_of_a_checkpoint(
    received: Path, state: str, command: list[str], capsys: pytest.CaptureFixture[str]
):
    old = json.loads((received / "checkpoints" / "step-000004" / "state.json").read_text())
    for folder in (received / "checkpoints").iterdir():
        given = json.loads(state)
        content = json.dumps({**given, "data": old["data"], "scaler": old["scaler"]}).encode()
        (folder / "state.json").write_bytes(content)
        listed = json.loads((folder / "MANIFEST.json").read_text())
        listed["files"]["state.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "MANIFEST.json").write_text(json.dumps(listed))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "state.json" in err
    assert "damaged" in err


def test_wrong_types_in_the_records_of_a_run(received: Path, capsys: pytest.CaptureFixture[str]):
    wrong = {"loss": [], "validation_loss": {}, "seconds": "1", "gradients": [1], "spread": {"a": 1}, "tokens": None}
    with open(received / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 5, **wrong}) + "\n")
    with open(received / "findings.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"step": 5, "kind": [], "where": {}, "what": 3}) + "\n")
    for command in ("info", "report", "doctor"):
        assert main([command, "one"]) in (0, 1, 2)
        assert "this is a fault in regard" not in capsys.readouterr().err


def test_a_runs_own_config_trains_again_also_as_a_copy(received: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copy(received / "config.toml", "mine.toml")
    for file, name in (("runs/one/config.toml", "one-1"), ("mine.toml", "mine-1")):
        assert main(["train", file, "--train.steps", "1"]) == 0, capsys.readouterr().err
        assert Run.open(Path("runs") / name).table("model") == Run.open(received).table("model")


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_an_empty_toml_file_is_refused(received: Path, text: str, capsys: pytest.CaptureFixture[str]):
    Path("empty.toml").write_text(text)
    assert main(["train", "empty.toml"]) == 2
    assert "empty.toml is empty; give it the keys of an experiment" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["a." * 100_000 + "a = 1", "x = " + "[" * 5000, "a." * 100 + "b = 1", "x = 1" + "0" * 5000, "a" * 2**20]
)
def test_deep_toml_is_refused_at_once(received: Path, text: str, capsys: pytest.CaptureFixture[str]):
    Path("deep.toml").write_text(text)
    (received / "config.toml").write_text(f"schema = 2\n{text}")
    for command in (["train", "deep.toml"], ["info", "one"]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert ".toml" in err
        assert len(err) < 400


def test_the_text_is_found_from_another_folder_and_missed_by_name(
    received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["evaluate", str(received), "--part", "train"]) == 0
    assert main(["resume", str(received), "--steps", "5"]) == 0
    moved = shutil.move(received, elsewhere / "moved")
    text = tmp_path / "here" / "text.txt"
    assert main(["evaluate", str(moved), "--part", "train"]) == 0  # resuming from another folder made the path absolute
    text.unlink()
    capsys.readouterr()
    assert main(["evaluate", str(moved), "--part", "train"]) == 2
    assert str(text) in capsys.readouterr().err


def test_a_run_that_was_moved_says_where_its_text_should_be(
    received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    moved = tmp_path / "far" / "runs" / "one"
    shutil.copytree(received, moved)
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(moved), "--part", "train"]) == 2
    assert str(tmp_path / "far" / "text.txt") in capsys.readouterr().err
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")  # in the current folder
    assert main(["evaluate", str(moved), "--part", "train"]) == 0


def test_a_config_that_a_training_replaces_is_read(received: Path) -> None:
    """Between reading a file and the manifest, the training may have written both."""
    run, over = Run.open(received), threading.Event()
    text = run.file("config.toml").read_text(encoding="utf-8").partition("\n")[2]
    versions = [text, text.replace("seed = 1", "seed = 2", 1)]

    def train() -> None:
        while not over.is_set():
            for version in versions:
                run.replace_config(version)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        seeds = {Run.open(received).config["seed"] for _ in range(200)}
    finally:
        over.set()
        thread.join()
    assert seeds == {1, 2}
