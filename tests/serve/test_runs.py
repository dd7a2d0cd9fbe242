"""The endpoints of runs: list, metrics, differences, and the event stream of a training run."""

from __future__ import annotations

import json
import re
import shutil
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from serve_kit import RunningServer, run_server

from regard.runs import Run
from regard.serve.events import RunFeed
from regard.serve.limits import ROWS
from regard.serve.metrics_log import MetricsLog
from regard.serve.records import JsonlTail, latest_findings, subsample
from regard.serve.run_library import NotFoundError, RunLibrary, is_training


def test_first_request_sets_a_cookie_and_keeps_the_query(served: RunningServer) -> None:
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
    assert linked.status == 200  # a browser would not send the strict cookie after a redirect
    assert b'content="0;url=/"' in linked.body


def test_token_is_accepted_in_header_and_url(served: RunningServer) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert served.get("/api/about", Host=f"{name}:{served.port}").status == 200
    assert served.get(f"/api/about?token={served.token}", Authorization=None).json["views"][0] == "runs"
    assert served.get("/api/about", Origin=f"http://127.0.0.1:{served.port}").status == 200


def test_runs_are_listed_with_opaque_ids(served: RunningServer, runs: Path) -> None:
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


def test_run_detail(served: RunningServer, runs: Path) -> None:
    detail = served.get(f"/api/runs/{served.identify('small')}").json
    assert detail["config"]["model"]["width"] == 16
    assert detail["checkpoints"] == [8]
    assert detail["samples"] == [{"step": 4, "text": "to be <script>alert(1)</script>"}]
    assert detail["capabilities"]["attention"] is True
    assert detail["capabilities"]["translation"] is False
    broken = served.get(f"/api/runs/{served.identify('broken')}")
    assert broken.status == 400
    assert str(runs) not in broken.json["error"]


def test_metrics_and_differences(served: RunningServer) -> None:
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


def test_differences_leave_out_what_a_run_sets_by_itself(runs: Path, tmp_path: Path) -> None:
    for name, lines in (
        ("one", "plans = [[0, 9], [4, 8]]\nlanes = 1"),
        ("two", "plans = [[0, 8]]"),
        ("ranks", "lanes = 2"),
    ):
        shutil.copytree(runs / "small", tmp_path / name)
        config = tmp_path / name / "config.toml"
        (tmp_path / name / "MANIFEST.json").unlink()
        without = re.sub(r"(?m)^(plans|lanes) = .*\n", "", config.read_text())
        config.write_text(without.replace("[train]\n", f"[train]\n{lines}\n"))
    library = RunLibrary(tmp_path)
    ids = {path.name: run for run, path in library.paths().items()}
    assert library.difference([ids["one"], ids["two"]]) == {"keys": []}
    assert library.difference([ids["two"], ids["ranks"]]) == {"keys": [{"key": "train.lanes", "values": [1, 2]}]}


def read_events(client: socket.socket, count: int, received: str = "") -> list[tuple[str, dict]]:
    """Read ``count`` events from a stream."""
    while len(found := re.findall(r"event: (\w+)\r?\ndata: (.*)\r?\n", received)) < count:
        piece = client.recv(65536)
        assert piece, received
        # A chunk contains complete lines; the chunk lengths between them do not match the pattern.
        received += piece.decode()
    return [(kind, json.loads(data)) for kind, data in found]


def test_streams_send_new_records(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "live")
    run = Run.open(tmp_path / "live")
    with run_server(tmp_path) as server, run.lock():
        request = server.head("GET", f"/api/runs/{server.identify('live')}/events")
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request)
            first = read_events(client, 3)
            assert [kind for kind, _ in first] == ["metrics", "sample", "state"]
            assert first[2][1]["state"] == "training"
        clients.pop().close()  # the others go on
        run.log({"step": 9, "loss": 1.25})
        run.log({"step": 9, "validation_loss": float("nan")})
        run.sample({"step": 9, "text": "more"})
        with open(run.file("findings.jsonl"), "a") as file:
            file.write('{"step": 9, "kind": "spike", "where": "loss", "severity": "warning", "what": "x"}\n{"step": 1')
        for client in clients:
            received = dict(read_events(client, 4))
            assert received["sample"] == {"step": 9, "text": "more"}
            assert received["finding"]["id"] == "spike:loss"
            assert received["metrics"]["rows"][-1][:2] == [9, 1.25]
        assert server.interrupt() == 0  # while streams are open
        for client in clients:
            client.close()


def test_a_snapshot_and_the_next_poll_are_complete_and_hide_nothing_from_other_streams(
    runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "small", tmp_path / "live")
    run, library = Run.open(tmp_path / "live"), RunLibrary(tmp_path)
    feed = RunFeed(library, next(iter(library.paths())))
    assert feed.poll() == []
    for step in (9, 10):  # the second stream begins with what was read for the first
        run.log({"step": step, "loss": 1.0})
        assert '"step": 9' in feed.snapshot(-1)[-1]
    with run.lock():
        assert '"training"' in feed.snapshot(9)[-1]
        metrics, state = feed.poll()
    assert [row[0] for row in json.loads(metrics.partition("data: ")[2])["rows"]] == [8, 9, 10]
    assert '"training"' in state
    assert '"step": 10' in feed.snapshot(-1)[-1]


def test_streams_of_a_removed_run_end(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "live")
    with run_server(tmp_path) as server:
        path = f"/api/runs/{server.identify('live')}/events"
        clients = [server.connect() for _ in range(2)]
        for client in clients:
            client.sendall(server.head("GET", path))
            read_events(client, 3)
        shutil.rmtree(tmp_path / "live")
        for client in clients:
            received = b""
            while not received.endswith(b"0\r\n\r\n"):  # the last chunk
                received += (piece := client.recv(65536))
                assert piece, received
            client.close()


def test_is_training_while_the_lock_is_held(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "one")
    run = Run.open(tmp_path / "one")
    assert not is_training(run.path)
    with run.lock():
        assert is_training(run.path)
        library = RunLibrary(tmp_path)
        assert library.runs()[0]["state"] == "training"
    assert not is_training(run.path)  # this process is alive but no longer holds the lock


def test_tail_reads_new_records_and_detects_truncation(tmp_path: Path) -> None:
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
    assert [record["step"] for record in JsonlTail(run.file("metrics.jsonl"), 10**6).read().records] == [1]
    for step in range(2, 40):
        run.log({"step": step, "loss": 1.0})
    assert [record["step"] for record in JsonlTail(run.file("metrics.jsonl"), 60).read().records] == [38, 39]


def log_steps(path: Path, steps: range) -> None:
    with open(path, "a") as file:
        for i in steps:
            record = {"step": i, "loss": i / 2, **({"validation_loss": 2.0} if i % 500 == 0 else {})}
            file.write(json.dumps(record) + "\n")


@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_long_tables_have_evenly_spaced_rows_both_ends_and_the_validation_losses(tmp_path: Path, pieces: int) -> None:
    path, log = tmp_path / "metrics.jsonl", MetricsLog(tmp_path / "metrics.jsonl")
    total = 20_000
    for piece in range(pieces):  # the table does not depend on when the file was read
        log_steps(path, range(1 + total * piece // pieces, 1 + total * (piece + 1) // pieces))
        log.refresh()
    table = json.loads(log.table(-1))
    steps = [row[0] for row in table["rows"]]
    assert table["recorded"] == total
    assert len(steps) == ROWS
    assert (steps, steps[0], steps[-1]) == (sorted(steps), 1, total)
    assert max(later - earlier for earlier, later in pairwise(steps)) <= 2 * total / ROWS + 8
    assert sum(row[2] is not None for row in table["rows"]) == 40
    assert all(row[1] == row[0] / 2 for row in table["rows"])
    assert len(subsample([{"step": i} for i in range(50)], 10)) == 10


def test_a_table_merges_the_records_of_a_step_and_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    assert json.loads(log.refresh().table(-1)) == {"recorded": 0, "columns": ["step"], "rows": []}
    path.write_text(
        '{"step": 0, "spread": {"a": [1.0]}}\n{"step": 1, "loss": "NaN"}\n{"step": 1, "lr": 0.5}\n{"step": 2, "lo'
    )
    assert json.loads(log.refresh().table(-1)) == {
        "recorded": 1,
        "columns": ["step", "loss", "lr"],
        "rows": [[1, None, 0.5]],
    }
    with open(path, "a") as file:
        file.write('ss": 3.0}\n')
    assert json.loads(log.refresh().table(1))["rows"] == [[2, 3.0]]
    path.write_text(
        '{"step": 1, "loss": 4.0, "note": "another run with a longer first line than the old file had before"}\n' * 3
    )
    assert json.loads(log.refresh().table(-1))["rows"] == [[1, 4.0]]
    assert log.restarts == 1
    path.unlink()
    assert json.loads(log.refresh().table(-1))["rows"] == []


def test_updated_findings_are_listed_once() -> None:
    record = {"step": 1, "kind": "spike", "where": "loss", "severity": "warning", "what": "a"}
    assert [f["step"] for f in latest_findings([record, {**record, "kind": "dead"}, {**record, "step": 5}])] == [1, 5]


def test_only_run_folders_have_ids(runs: Path, tmp_path: Path) -> None:
    library = RunLibrary(runs)
    assert len(library.paths()) == 3
    assert RunLibrary(runs).paths().keys().isdisjoint(library.paths())  # each server generates its own key
    for name in ("small", "../runs/small", "", ".."):
        with pytest.raises(NotFoundError):
            library.path(name)
    assert RunLibrary(tmp_path).runs() == []
