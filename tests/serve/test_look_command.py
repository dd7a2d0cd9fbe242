"""`regard look` and `regard.show`: the page in one file, which asks nobody anything."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from serve_kit import REGARD

from regard.generate.load import load_model
from regard.look.views.session import Session
from regard.runs import Run
from regard.serve.html_file import embedded_data, html_document
from regard.serve.show import show

TEXT = "to be, </script><!-- or not to be"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return subprocess.run([*REGARD, *words], env=environment, capture_output=True, text=True, timeout=120)


def data(html: str) -> dict:
    """What is embedded, found as a browser finds it."""
    found = re.search(r'<script type="application/json" id="regard-data">(.*?)</script', html, re.S | re.I)
    assert found
    return json.loads(found[1])


def test_the_command_writes_one_file_that_needs_nothing_else(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    done = call("look", "small", "--runs", str(runs), "--text", "to be or not", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["page"], told["tokens"], told["bytes"]) == (str(out), 12, out.stat().st_size)
    html = out.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)
    inside = data(html)
    assert "".join(inside["trace"]["tokens"]) == "to be or not"
    assert set(inside["tiles"]) == {f"{layer}/{head}/0/0/0" for layer in (0, 1) for head in (0, 1)}
    assert "0/1/7" in inside["rows"]
    assert inside["cells"]["0/1/7/3"]["weight"] == pytest.approx(dict(inside["rows"]["0/1/7"]["weights"])[3], rel=1e-3)


def test_the_policy_allows_exactly_what_is_inside(runs: Path) -> None:
    session = Session.load(Run.open(runs / "small"))
    html = html_document(session.trace("to be"), "</title><script>alert(1)</script>", "to be")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(scripts) == 1
    sheet = re.search(r"<style>(.*?)</style>", html, re.S)
    assert sheet
    for text in (scripts[0], sheet[1]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "alert(1)</script>" not in html


def test_a_small_limit_leaves_out_the_fine_parts_first(runs: Path) -> None:
    trace = Session.load(Run.open(runs / "small")).trace("to be or not to be")
    whole = embedded_data(trace, "t", "x")
    assert whole["cells"]
    assert whole["rows"]
    less = embedded_data(trace, "t", "x", limit=40_000)
    assert less["tiles"]
    assert not less["cells"]
    assert len(json.dumps(less)) <= 40_000


def test_coarse_tiles_are_those_of_the_trace(runs: Path) -> None:
    trace = Session.load(Run.open(runs / "small")).trace("to be or not to be, " * 31)
    tiles = embedded_data(trace, "t", "x")["tiles"]
    assert len(tiles) == 4 * (1 + 3 + 6)  # 620 tokens: one tile, three and six on and below the diagonal
    for place in ("1/1/2/0/0", "0/0/1/1/0", "1/0/0/2/1"):
        tile = trace.tile(*(int(number) for number in place.split("/")))
        inside = np.frombuffer(base64.b64decode(tiles[place]["data"]), np.uint8).reshape(tiles[place]["shape"])
        assert inside.shape == tile.shape
        assert abs(inside.astype(int) - tile).max() <= 1  # other blocks of rows round otherwise


def test_a_text_that_would_end_the_script_does_not(runs: Path) -> None:
    html = html_document(Session.load(Run.open(runs / "small")).trace("to be"), "t", TEXT)
    assert data(html)["text"] == TEXT


def test_show_draws_the_same_page_in_a_frame(runs: Path) -> None:
    loaded = load_model(Run.open(runs / "small"))
    shown = show(loaded.model, "to be", tokenizer=loaded.tokenizer)
    frame = shown._repr_html_()
    found = re.fullmatch(r'<iframe sandbox="([^"]*)" srcdoc="([^"]*)"[^>]*></iframe>', frame)
    assert found
    assert "allow-same-origin" not in found[1]
    assert data(unescape(found[2]))["trace"]["tokens"] == list("to be")
    assert data(show(str(runs / "small"), "to be").html) == data(shown.html)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--text", "a", "--file", "b"), "--text TEXT"),
        (("--pair", "to be"), "not 1 texts"),
        (("--text", "to be", "--out", "nowhere/a.html"), "make it first"),
        (("--text", "to be", "--most", "0"), "--most"),
    ],
)
def test_a_slip_is_one_sentence(runs: Path, words: tuple[str, ...], why: str) -> None:
    done = call("look", "small", "--runs", str(runs), *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_a_text_it_reads_what_the_run_wrote(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "own")
    samples = tmp_path / "own" / "samples.jsonl"
    samples.write_text('{"step": 4, "prompt": "to", "text": " be or"}\n')
    done = call("look", "own", "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert data((tmp_path / "own" / "look.html").read_text())["trace"]["tokens"] == list("to be or")
    samples.write_text("")
    done = call("look", "own", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "--text TEXT" in done.stderr
