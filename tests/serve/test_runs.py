"""The folder of runs as the page sees it: lists, curves, differences, and what comes while a run trains."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from serve_kit import Served, serving

from regard.runs import Run
from regard.serve.is_training import is_training
from regard.serve.jsonl_tail import JsonlTail, read_last
from regard.serve.run_library import NotFoundError, RunLibrary
from regard.serve.tables import latest_findings, metrics_table, subsample


def test_the_first_address_gives_a_cookie_and_keeps_the_rest(served: Served) -> None:
    answer = served.get(f"/?token={served.token}&a=b", Authorization=None)
    assert (answer.status, answer.headers["location"]) == (303, "/?a=b")
    cookie = answer.headers["set-cookie"]
    assert re.search("HttpOnly", cookie)
    assert re.search("SameSite=strict", cookie)
    page = served.get("/", Authorization=None, Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert b'id="page"' in page.body
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    linked = served.get(f"/?token={served.token}", Authorization=None, Sec_Fetch_Site="cross-site")
    assert linked.status == 200  # a strict cookie would not come along with a redirect
    assert b'content="0;url=/"' in linked.body


def test_a_token_is_taken_in_the_header_and_in_the_address(served: Served) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert served.get("/api/about", Host=f"{name}:{served.port}").status == 200
    assert served.get(f"/api/about?token={served.token}", Authorization=None).json["views"][0] == "runs"
    assert served.get("/api/about", Origin=f"http://127.0.0.1:{served.port}").status == 200


def test_runs_are_listed_by_ids_that_tell_nothing(served: Served, runs: Path) -> None:
    listed = {run["name"]: run for run in served.get("/api/runs").json["runs"]}
    assert set(listed) == {"small", "wide", "broken"}
    small, broken = listed["small"], listed["broken"]
    assert (small["state"], small["step"], small["total_steps"], small["model"]) == ("finished", 8, 8, "gpt")
    assert small["loss"] == Run.open(runs / "small").metrics()[-1].get("loss", small["loss"])
    assert small["parameters"] > 1000
    assert small["validation_loss"] > 0
    assert broken["state"] == "damaged"
    assert "schema 99" in broken["error"]
    assert str(runs.parent) not in json.dumps(listed)
    assert not any("small" in run["id"] or "wide" in run["id"] for run in listed.values())


def test_a_run_is_told_whole(served: Served, runs: Path) -> None:
    told = served.get(f"/api/runs/{served.identify('small')}").json
    assert told["config"]["model"]["width"] == 16
    assert told["checkpoints"] == [8]
    assert told["samples"] == [{"step": 4, "text": "to be <script>alert(1)</script>"}]
    assert told["capabilities"]["attend"] is True
    assert told["capabilities"]["pair"] is False
    broken = served.get(f"/api/runs/{served.identify('broken')}")
    assert broken.status == 400
    assert str(runs) not in broken.json["error"]


def test_curves_and_differences(served: Served) -> None:
    small, wide = served.identify("small"), served.identify("wide")
    whole = served.get(f"/api/runs/{small}/metrics").json
    assert whole["columns"][0] == "step"
    assert {"loss", "validation_loss"} <= set(whole["columns"])
    late = served.get(f"/api/runs/{small}/metrics?after=5").json
    assert [row[0] for row in late["rows"]] == [6, 7, 8]
    found = served.get(f"/api/difference?runs={small},{wide}").json["keys"]
    assert found == [{"key": "model.width", "values": [16, 32]}]
    assert served.get(f"/api/difference?runs={small}").status == 400
    assert served.get("/api/runs/0123456789abcdef01234567").status == 404


def events(client: socket.socket, wanted: int, seen: str = "") -> list[tuple[str, dict]]:
    """The next so many events of a stream."""
    while len(found := re.findall(r"event: (\w+)\r?\ndata: (.*)\r?\n", seen)) < wanted:
        piece = client.recv(65536)
        assert piece, seen
        # What one chunk holds is always whole lines; the lengths between them are not events.
        seen += piece.decode()
    return [(kind, json.loads(data)) for kind, data in found]


def test_a_stream_tells_what_a_trainer_adds(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "live")
    run = Run.open(tmp_path / "live")
    with serving(tmp_path) as server, run.lock():
        asked = server.head("GET", f"/api/runs/{server.identify('live')}/events")
        client = server.connect()
        client.sendall(asked)
        first = events(client, 3)
        assert [kind for kind, _ in first] == ["metrics", "sample", "state"]
        assert first[2][1]["state"] == "training"
        run.log({"step": 9, "loss": 1.25})
        run.log({"step": 9, "validation_loss": float("nan")})
        run.sample({"step": 9, "text": "more"})
        with open(run.file("findings.jsonl"), "a") as file:
            file.write('{"step": 9, "kind": "spike", "where": "loss", "severity": "warning", "what": "x"}\n{"step": 1')
        told = dict(events(client, 4))
        assert told["sample"] == {"step": 9, "text": "more"}
        assert told["finding"]["id"] == "spike:loss"
        assert told["metrics"]["rows"][-1][:2] == [9, 1.25]
        client.close()
        assert server.interrupt() == 0


def test_a_run_counts_as_training_only_while_its_lock_is_held(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "one")
    run = Run.open(tmp_path / "one")
    assert not is_training(run.path)
    with run.lock():
        assert is_training(run.path)
        library = RunLibrary(tmp_path)
        assert library.runs()[0]["state"] == "training"
    assert not is_training(run.path)  # this process lives, and holds it no more


def test_a_tail_reads_what_is_new_and_notices_a_cut(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "a", "", {})
    tail = JsonlTail(run.file("metrics.jsonl"))
    assert tail.read() == ([], False)
    for step in (1, 2):
        run.log({"step": step, "loss": 1.0})
    assert [record["step"] for record in tail.read().records] == [1, 2]
    with open(run.file("metrics.jsonl"), "ab") as file:
        file.write(b'{"step": 3, "lo')
    assert tail.read() == ([], False)
    run.log({"step": 3, "loss": 2.0})
    assert [record["step"] for record in tail.read().records] == [3]
    run.rewind(1)
    assert tail.read() == ([{"step": 1, "loss": 1.0}], True)
    assert [record["step"] for record in read_last(run.file("metrics.jsonl"), 10**6)] == [1]
    for step in range(2, 40):
        run.log({"step": step, "loss": 1.0})
    assert [record["step"] for record in read_last(run.file("metrics.jsonl"), 60)] == [38, 39]


def test_long_curves_are_thinned_and_keep_their_ends_and_validations() -> None:
    records = [{"step": i, "loss": 1.0, **({"validation_loss": 2.0} if i % 500 == 0 else {})} for i in range(1, 20_001)]
    told = metrics_table(records)
    steps = [row[0] for row in told["rows"]]
    assert len(steps) == 2000
    assert (steps, steps[0], steps[-1]) == (sorted(steps), 1, 20_000)
    assert sum(row[2] is not None for row in told["rows"]) == 40
    assert len(subsample(records, 10)) == 10
    assert metrics_table([{"step": 1, "loss": "NaN"}]) == {"columns": ["step", "loss"], "rows": [[1, None]]}
    assert metrics_table([{"step": 0, "spread": {"a": [1.0]}}])["rows"] == []


def test_a_finding_that_was_updated_is_told_once() -> None:
    record = {"step": 1, "kind": "spike", "where": "loss", "severity": "warning", "what": "a"}
    assert [f["step"] for f in latest_findings([record, {**record, "kind": "dead"}, {**record, "step": 5}])] == [1, 5]


def test_only_what_is_a_run_has_an_id(runs: Path, tmp_path: Path) -> None:
    library = RunLibrary(runs)
    assert len(library.paths()) == 3
    assert RunLibrary(runs).paths().keys().isdisjoint(library.paths())  # the key is new for each server
    for name in ("small", "../runs/small", "", ".."):
        with pytest.raises(NotFoundError):
            library.path(name)
    assert RunLibrary(tmp_path).runs() == []
