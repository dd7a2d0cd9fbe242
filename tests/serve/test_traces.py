"""The model endpoints over real HTTP, compared with the model itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from serve_kit import RunningServer

from regard.generate.load import load_model
from regard.look import attentions, dense_weights
from regard.runs import Run

TEXT = "to be or not to be"


@pytest.fixture(scope="module")
def trace(served: RunningServer) -> dict:
    response = served.post("/api/traces", {"run": served.identify("small"), "text": TEXT})
    assert response.status == 200, response.body
    return response.json


@pytest.fixture(scope="module")
def maps(runs: Path) -> list[np.ndarray]:
    """Return the dense weights [H, N, N] of every layer."""
    model, tokenizer, *_ = load_model(Run.open(runs / "small"))
    tokens = torch.as_tensor(tokenizer.encode(TEXT))[None]
    found = attentions(model, lambda: model(tokens))
    return [dense_weights(one)[0].numpy() for one in found]


def encode_weights(weights: np.ndarray) -> np.ndarray:
    return np.round(255 * np.sqrt(weights)).astype(int)


def test_trace_lists_tokens_and_attentions(trace: dict) -> None:
    assert "".join(trace["tokens"]) == TEXT
    assert [(one["heads"], one["queries"], one["keys"]) for one in trace["attentions"]] == [(2, 18, 18)] * 2
    assert all(one["exact"] and one["causal"] and one["kind"] == "self" for one in trace["attentions"])
    assert 0 < trace["loss"] < 10


def test_overview_and_tiles_match_the_weights(served: RunningServer, trace: dict, maps: list[np.ndarray]) -> None:
    base = f"/api/traces/{trace['id']}"
    whole = served.get(f"{base}/overview?size=64")
    shape = [int(size) for size in whole.headers["x-shape"].split(",")]
    assert shape[:2] == [2, 2]
    assert len(whole.body) == math.prod(shape)
    assert whole.headers["x-ready"] == "2"
    tile = served.get(f"{base}/tile?attention=1&head=1&level=0&row=0&column=0")
    assert tile.headers["x-shape"] == "18,18"
    found = np.frombuffer(tile.body, np.uint8).reshape(18, 18).astype(int)
    assert abs(found - encode_weights(maps[1][1])).max() <= 1
    assert "levels" in served.get(f"{base}/tile?attention=1&head=1&level=1&row=0&column=0").json["error"]


def test_row_and_cell_match_the_weights(served: RunningServer, trace: dict, maps: list[np.ndarray]) -> None:
    base = f"/api/traces/{trace['id']}"
    row = served.get(f"{base}/row?attention=0&head=1&query=7").json
    assert row["visible_keys"] == 8
    assert sum(weight for _, weight in row["weights"]) == pytest.approx(1, abs=1e-5)
    for key, weight in row["weights"]:
        assert weight == pytest.approx(maps[0][1, 7, key], abs=1e-5)
    cell = served.get(f"{base}/cell?attention=0&head=1&query=7&key=3").json
    assert cell["weight"] == pytest.approx(maps[0][1, 7, 3], abs=1e-5)
    assert sum(cell["terms"]) == pytest.approx(cell["dot"], abs=1e-4)
    assert cell["exp"] / cell["sum"] == pytest.approx(cell["weight"], abs=1e-5)
    hidden = served.get(f"{base}/cell?attention=0&head=1&query=3&key=7").json
    assert (hidden["allowed"], hidden["weight"]) == (False, 0)
    measured = served.get(f"{base}/measures").json["heads"]
    assert len(measured) == 4


def test_out_of_range_parameters_are_rejected(served: RunningServer, trace: dict) -> None:
    base = f"/api/traces/{trace['id']}"
    targets = ["row?attention=9&head=0&query=0", "row?attention=0&head=9&query=0", "row?attention=0&head=0&query=99"]
    targets += [
        "cell?attention=0&head=0&query=0&key=99",
        "tile?attention=0&head=0&level=40&row=0&column=0",
        "row?attention=0",
    ]
    targets += [
        "tile?attention=0&head=0&level=0&row=9&column=0",
        "overview?size=100000",
        "row?attention=-1&head=0&query=0",
    ]
    for target in targets:
        response = served.get(f"{base}/{target}")
        assert response.status == 400, (target, response)
        assert len(response.json["error"]) > 10
    run = served.identify("small")
    for body in ({"run": run, "text": ""}, {"run": run, "text": "to be", "checkpoint": 3}, {"run": run}):
        assert served.post("/api/traces", body).status == 400, body
    assert served.get("/api/traces/nothing/measures").status == 404


def test_old_traces_are_evicted(served: RunningServer) -> None:
    run = served.identify("small")
    traces = [served.post("/api/traces", {"run": run, "text": "to be"}).json["id"] for _ in range(9)]
    statuses = [served.get(f"/api/traces/{one}/row?attention=0&head=0&query=1").status for one in traces]
    assert statuses == [404, *[200] * 8]


def test_step_returns_the_sampling_distribution(served: RunningServer) -> None:
    run = served.identify("small")
    step = served.post("/api/step", {"run": run, "text": "to be", "temperature": 0.5, "top_k": 3, "seed": 4}).json
    assert sum(one["kept"] for one in step["candidates"]) == 3
    assert sum(one["sampling_probability"] for one in step["candidates"]) == pytest.approx(1, abs=1e-4)
    assert step["sampled"]["token"] in [one["token"] for one in step["candidates"] if one["kept"]]
    assert served.post("/api/step", {"run": run, "text": "to", "temperature": -1}).status == 400
    assert served.post("/api/step", {"run": run, "text": "to", "top_p": "a"}).status == 400
    tree = served.post("/api/beam", {"run": run, "text": "to be", "beams": 2, "length": 4}).json["nodes"]
    assert len({node["id"] for node in tree}) == len(tree) > 4


def test_probes(served: RunningServer, trace: dict) -> None:
    run = served.identify("small")
    lens = served.post("/api/lens", {"run": run, "text": TEXT}).json
    assert len(lens["layers"]) == len(lens["top"]) == 3
    rolled = served.post("/api/rollout", {"trace": served.post("/api/traces", {"run": run, "text": TEXT}).json["id"]})
    shape = [int(size) for size in rolled.headers["x-shape"].split(",")]
    assert np.frombuffer(rolled.body, "<f4").reshape(shape).sum(1) == pytest.approx(1, abs=1e-3)
    ablated = served.post("/api/ablate", {"run": run, "text": TEXT, "heads": [[0, 0], [1, 1]], "count": 5}).json
    assert ablated["loss"]["before"] == pytest.approx(trace["loss"], abs=1e-4)
    assert ablated["loss"]["after"] != ablated["loss"]["before"]
    patched = served.post(
        "/api/patch", {"run": run, "text": TEXT, "source_text": TEXT, "layer": 1, "positions": None}
    ).json
    assert patched["loss"]["after"] == pytest.approx(patched["loss"]["before"], abs=1e-5)
    assert served.post("/api/patch", {"run": run, "text": TEXT, "source_text": TEXT, "layer": 99}).status == 400
    assert served.post("/api/ablate", {"run": run, "text": TEXT, "heads": [[0]]}).status == 400
    assert served.post("/api/ablate", {"run": run, "text": TEXT, "heads": [[7, 0]]}).status == 400
