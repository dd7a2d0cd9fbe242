"""The limits of the server: event streams, counts, and a file thread that nothing blocks."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from serve_kit import RunningServer, receive, run_server

from regard.look.views.session import MAX_TOKENS
from regard.serve.api import Api
from regard.serve.app import PageServer
from regard.serve.limits import QUEUED, STREAMS
from regard.serve.request_params import RequestParams
from regard.serve.run_library import RunLibrary
from regard.serve.session_cache import SessionCache


def test_the_limit_of_streams_holds_for_requests_at_the_same_time(runs: Path) -> None:
    with run_server(runs) as server:
        run = server.identify("small")
        head = server.head("GET", f"/api/runs/{run}/events")
        with ExitStack() as opened:
            clients = [opened.enter_context(server.connect()) for _ in range(3 * STREAMS)]
            for client in clients:
                client.sendall(head)
            first = [client.recv(12) for client in clients]
        assert first.count(b"HTTP/1.1 200") == STREAMS
        assert first.count(b"HTTP/1.1 503") == 2 * STREAMS
        # Also clients that leave before the first event give their place back.
        for _ in range(3):
            for _ in range(STREAMS):
                with server.connect() as client:
                    client.sendall(head)
        for _ in range(3000):
            with server.connect() as client:
                client.sendall(head)
                if client.recv(12) == b"HTTP/1.1 200":
                    break
            time.sleep(0.2)
        else:
            pytest.fail("no stream is accepted any more")
        missing = server.get("/api/runs/none/events")
        assert missing.status == 404


def test_counts_are_refused_by_the_limit_that_the_work_has(served: RunningServer) -> None:
    run = served.identify("small")
    body = {"run": run, "text": "to be", "heads": [[0, 0]]}
    for path, low in (("step", 1), ("ablate", 0)):
        assert served.post(f"/api/{path}", {**body, "count": MAX_TOKENS}).status == 200
        for count in (low - 1, MAX_TOKENS + 1):
            refused = served.post(f"/api/{path}", {**body, "count": count})
            assert refused.status == 400
            assert f"an integer from {low} to {MAX_TOKENS}" in refused.json["error"]
    refused = served.post("/api/step", {**body, "position": 2**16})
    assert "an integer from 0 to 65535" in refused.json["error"]


@pytest.mark.skipif(os.name == "nt", reason="FIFOs as POSIX systems have them")
def test_nothing_in_a_run_folder_blocks_the_file_thread(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    shutil.copytree(folder / "small", folder / "pipes")
    for name in ("environment.json", "metrics.jsonl", "samples.jsonl", "findings.jsonl", "notes.json", ".lock"):
        (folder / "pipes" / name).unlink(missing_ok=True)
        os.mkfifo(folder / "pipes" / name)
    os.mkfifo(folder / "pipes" / "report.html")
    for name, old, new in (
        ("tall", "layers = 2", "layers = 2000000000000"),
        ("wide", "width = 32", f"width = {2**50}"),
    ):
        if name != "wide":
            shutil.copytree(folder / "small", folder / name)
        config = folder / name / "config.toml"
        config.write_text(config.read_text().replace(old, new))
        (folder / name / "MANIFEST.json").unlink()
    with run_server(folder) as server:
        listed = {run["name"]: run["id"] for run in server.get("/api/runs").json["runs"]}
        assert set(listed) == {"small", "wide", "pipes", "tall", "broken"}
        for name in ("pipes", "tall", "wide"):
            for address in ("", "/metrics", "/report"):
                assert server.get(f"/api/runs/{listed[name]}{address}").status < 500
            with server.connect() as client:
                client.sendall(server.head("GET", f"/api/runs/{listed[name]}/events"))
                assert client.recv(12) == b"HTTP/1.1 200"
            traced = server.post("/api/traces", {"run": listed[name], "text": "to be"})
            assert traced.status == (200 if name == "pipes" else 400), traced.body


def test_a_damaged_newest_checkpoint_is_in_the_answer_about_a_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "runs" / "small")
    checkpoints = tmp_path / "runs" / "small" / "checkpoints"
    shutil.copytree(checkpoints / "step-000008", checkpoints / "step-000009")
    manifest = checkpoints / "step-000009" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"step": 8', '"step": 9'))
    weights = checkpoints / "step-000009" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    library = RunLibrary(tmp_path / "runs")
    api = Api(SessionCache(library, torch.device("cpu")))
    (run,) = library.paths()
    params = RequestParams({"run": run, "text": "to be"})
    assert api.run(params)["damaged"] == []  # only sizes are compared until a model is loaded
    api.step(params)
    (damage,) = api.run(params)["damaged"]
    assert damage.startswith("checkpoint step-000009 is damaged: model.safetensors does not have the SHA-256")


def test_a_changed_config_is_read_again(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "runs" / "small")
    (tmp_path / "runs" / "small" / "MANIFEST.json").unlink()
    library = RunLibrary(tmp_path / "runs")
    (run,) = library.paths()
    assert library.detail(run)["config"]["seed"] == 7
    config = tmp_path / "runs" / "small" / "config.toml"
    config.write_text(config.read_text().replace("seed = 7", "seed = 11"))
    assert library.detail(run)["config"]["seed"] == 11


def test_many_clients_are_answered_while_a_model_runs(served: RunningServer) -> None:
    run = served.identify("small")
    answers: list[int] = []

    def ask() -> None:
        for address in ("/api/runs", f"/api/runs/{run}", f"/api/runs/{run}/metrics"):
            with served.connect() as client:
                client.sendall(served.head("GET", address))
                answers.append(receive(client).status)

    clients = [threading.Thread(target=ask) for _ in range(16)]
    for client in clients:
        client.start()
    assert (
        served.post("/api/ablate", {"run": run, "text": "to be " * 20, "heads": [[0, 0]], "count": 100}).status == 200
    )
    for client in clients:
        client.join()
    assert answers == [200] * 48


def test_a_stream_survives_a_busy_server() -> None:
    async def read_while_busy() -> list[str]:
        page = PageServer(SessionCache(RunLibrary(Path("none")), torch.device("cpu")), lambda: None, lambda: False)
        release = threading.Event()
        waiting = [asyncio.create_task(page._files.run(release.wait)) for _ in range(QUEUED + 1)]
        await asyncio.sleep(0)
        with pytest.raises(queue.Full):  # a request is refused
            await page._files.run(list)
        reading = asyncio.create_task(page._read_feed(lambda: ["event"]))
        await asyncio.sleep(0.05)
        release.set()
        await asyncio.gather(*waiting)
        return await reading

    assert asyncio.run(read_while_busy()) == ["event"]
