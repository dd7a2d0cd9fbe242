"""What the page opens with: notes, the report, a held-out passage, a checkpoint; and errors that a person can fix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from serve_kit import RunningServer, run_server

from regard.config import to_toml
from regard.data import TextConfig
from regard.errors import UserError
from regard.look.views.session import Session
from regard.recipes.digits import recipe
from regard.runs import Run, environment
from regard.runs.notes import read_notes, write_notes
from regard.serve.run_library import RunLibrary
from regard.serve.session_cache import SessionCache, _capabilities


def test_notes_are_written_to_the_run_folder(served: RunningServer, runs: Path) -> None:
    address = f"/api/runs/{served.identify('wide')}/notes"
    assert served.post(address, {"tags": ["wide", "Größe"], "note": "twice as wide"}).status == 200
    listed = next(run for run in served.get("/api/runs").json["runs"] if run["name"] == "wide")
    assert (listed["tags"], listed["note"]) == (["wide", "Größe"], "twice as wide")
    assert json.loads((runs / "wide" / "notes.json").read_text("utf-8")) == {k: listed[k] for k in ("tags", "note")}
    for wrong in ({"tags": "wide", "note": ""}, {"tags": [1], "note": ""}, {"tags": ["x" * 50], "note": ""}, {}):
        assert served.post(address, wrong).status == 400
    assert served.get("/api/runs").json["runs"][0].keys() >= {"tags", "note", "checkpoint", "flops_per_token"}


def test_damaged_notes_are_empty(runs: Path) -> None:
    run = Run.open(runs / "small")
    for content in ("", "[]", '{"tags": 3, "note": []}'):
        run.file("notes.json").write_text(content)
        assert read_notes(run) == ([], "")
    with pytest.raises(UserError, match="at most 16 tags"):
        write_notes(run, [str(i) for i in range(17)], "")
    run.file("notes.json").unlink()


def test_report_is_served_in_a_sandbox(served: RunningServer, runs: Path) -> None:
    address = f"/api/runs/{served.identify('small')}/report"
    assert served.get(address).status == 404
    assert served.get(address.removesuffix("/report")).json["report"] is False
    (runs / "small" / "report.html").write_text("<!doctype html><h1>report</h1>", encoding="utf-8")
    answer = served.get(address)
    (runs / "small" / "report.html").unlink()
    assert (answer.status, answer.body) == (200, b"<!doctype html><h1>report</h1>")
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts;" in policy
    assert "default-src 'none'" in policy  # it can send nothing


def test_comparisons_are_listed_and_served_in_a_sandbox(served: RunningServer, runs: Path) -> None:
    assert served.get("/api/runs").json["comparisons"] == []
    folder = runs / "comparisons" / "long"
    folder.mkdir(parents=True)
    (folder / "compare.html").write_text("<!doctype html><h1>compared</h1>", encoding="utf-8")
    (found,) = served.get("/api/runs").json["comparisons"]
    answer = served.get(f"/api/comparisons/{found['id']}")
    other = served.get(f"/api/comparisons/{found['name']}")
    shutil.rmtree(folder.parent)
    assert found["name"] == "long"
    assert (answer.status, answer.body) == (200, b"<!doctype html><h1>compared</h1>")
    assert "sandbox allow-scripts;" in answer.headers["content-security-policy"]
    assert other.status == 404  # pages have opaque ids


def test_passage_is_held_out(served: RunningServer, runs: Path) -> None:
    found = served.get(f"/api/runs/{served.identify('small')}/passage").json
    data = Run.open(runs / "small").load(TextConfig, "data").build(32)
    held_out = data.tokenizer.decode(next(iter(data.validation_batches(1))).inputs[0].tolist())
    assert found["held_out"]
    assert held_out.endswith(found["text"])
    assert not found["text"][0].isspace()
    assert found["bytes_per_token"] == pytest.approx(1.0)  # characters of ASCII


def test_a_passage_is_never_downloaded(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    shutil.copytree(runs / "small", tmp_path / "runs" / "small")
    config = tmp_path / "runs" / "small" / "config.toml"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if not line.startswith("path =")))
    (config.parent / "MANIFEST.json").unlink()
    library = RunLibrary(tmp_path / "runs")
    with pytest.raises(UserError, match="plays is not on this machine"):
        SessionCache(library, torch.device("cpu")).passage(library.runs()[0]["id"])


def test_every_view_takes_a_checkpoint(runs: Path, tmp_path: Path) -> None:
    run = Run.open(runs / "small")
    with run_server(runs) as server:
        body = {"run": server.identify("small"), "text": "to be", "checkpoint": 8}
        for endpoint in ("traces", "step", "lens", "residual"):
            assert server.post(f"/api/{endpoint}", body).status == 200
            missing = server.post(f"/api/{endpoint}", {**body, "checkpoint": 7})
            assert (missing.status, "7" in missing.json["error"]) == (400, True)
        shown = server.post("/api/residual", body).json
    expected = Session.load(run, step=8).residual("to be")
    assert shown["parts"][0]["norm"] == pytest.approx(expected["parts"][0]["norm"], rel=1e-4)


def test_a_page_may_ask_for_errors_without_an_error_status(served: RunningServer) -> None:
    body = {"run": served.identify("small"), "text": "漢字"}
    plain, quiet = served.post("/api/step", body), served.post("/api/step", body, X_Error_Status="200")
    assert (plain.status, quiet.status, quiet.headers["x-error"]) == (400, 200, "400")
    assert plain.json == quiet.json


def test_a_model_of_images_names_the_command_that_shows_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "digits", to_toml(recipe()), environment())
    found = _capabilities(run.path, ())
    assert not found["attention"]
    assert found["reason"] == "this model reads images and no text; `regard look digits` shows its attention"
