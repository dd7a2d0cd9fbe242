"""`regard look` and `regard.show`: the page as one file without requests."""

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
import torch

from regard.attention import LinearConfig
from regard.commands.look import LookOptions, texts
from regard.data.tokenizers.characters import Characters
from regard.errors import UserError
from regard.generate.load import load_model
from regard.look.views.session import Session
from regard.models import GPTConfig
from regard.runs import Run
from regard.serve.html_file import embedded_data, html_document, show
from warm_process import regard

TEXT = "to be, </script><!-- or not to be"


def run_regard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return regard(Path.cwd(), *arguments, environment=os.environ)


def embedded_json(html: str) -> dict:
    """Extract the embedded data as a browser does."""
    match = re.search(r'<script type="application/json" id="regard-data">(.*?)</script', html, re.S | re.I)
    assert match
    return json.loads(match[1])


def test_look_writes_a_self_contained_file(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    done = run_regard("look", "small", "--runs", str(runs), "--text", "to be or not", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["page"], result["tokens"], result["bytes"]) == (str(out), 12, out.stat().st_size)
    html = out.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)
    content = embedded_json(html)
    assert "".join(content["trace"]["tokens"]) == "to be or not"
    assert set(content["tiles"]) == {f"{layer}/{head}/0/0/0" for layer in (0, 1) for head in (0, 1)}
    assert set(content["cells"]) == {"0/0", "0/1", "1/0", "1/1"}
    assert not content["rows"]  # the page computes them from the cells


def test_content_security_policy_allows_only_the_inlined_files(runs: Path) -> None:
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


def test_small_limits_drop_details_first(runs: Path) -> None:
    trace = Session.load(Run.open(runs / "small")).trace("to be or not to be")
    whole = embedded_data(trace, "t", "x")
    assert whole["cells"]
    less = embedded_data(trace, "t", "x", limit=12_000)
    assert less["tiles"]
    assert not less["cells"]
    assert len(json.dumps(less)) <= 12_000


def test_coarse_tiles_match_the_trace(runs: Path) -> None:
    trace = Session.load(Run.open(runs / "small")).trace("to be or not to be, " * 31)
    tiles = embedded_data(trace, "t", "x")["tiles"]
    assert len(tiles) == 4 * (1 + 3 + 6)  # 620 tokens: one tile, three and six on and below the diagonal
    for place in ("1/1/2/0/0", "0/0/1/1/0", "1/0/0/2/1"):
        tile = trace.tile(*(int(number) for number in place.split("/")))
        inside = np.frombuffer(base64.b64decode(tiles[place]["data"]), np.uint8).reshape(tiles[place]["shape"])
        assert inside.shape == tile.shape
        assert abs(inside.astype(int) - tile).max() <= 1  # blocks of different sizes round differently


def test_script_end_tags_are_escaped(runs: Path) -> None:
    html = html_document(Session.load(Run.open(runs / "small")).trace("to be"), "t", TEXT)
    assert embedded_json(html)["text"] == TEXT


def test_show_embeds_the_page_in_a_frame(runs: Path) -> None:
    loaded = load_model(Run.open(runs / "small"))
    shown = show(loaded.model, "to be", tokenizer=loaded.tokenizer)
    frame = shown._repr_html_()
    found = re.fullmatch(r'<iframe sandbox="([^"]*)" srcdoc="([^"]*)"[^>]*></iframe>', frame)
    assert found
    assert "allow-same-origin" not in found[1]
    assert embedded_json(unescape(found[2]))["trace"]["tokens"] == list("to be")
    assert embedded_json(show(str(runs / "small"), "to be").html) == embedded_json(shown.html)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--text", "a", "--file", "b"), "--text TEXT"),
        (("--pair", "to be"), "not 1 texts"),
        (("--text", "to be", "--out", "nowhere/a.html"), "make it first"),
        (("--text", "to be", "--most", "0"), "--most"),
    ],
)
def test_invalid_arguments(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_regard("look", "small", "--runs", str(runs), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("text", [None, "to be"])
def test_a_translation_model_needs_both_texts(tmp_path: Path, text: str | None) -> None:
    run = Run.create(tmp_path, "pairs", '[data]\nkind = "pairs"\n', {})
    with pytest.raises(UserError, match="give both texts: --pair SOURCE TRANSLATION"):
        texts(LookOptions(text=text), run)


def test_default_text_is_the_last_sample(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "small", tmp_path / "own")
    samples = tmp_path / "own" / "samples.jsonl"
    samples.write_text('{"step": 4, "prompt": "to", "text": " be or"}\n')
    done = run_regard("look", "own", "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert embedded_json((tmp_path / "own" / "look.html").read_text())["trace"]["tokens"] == list("to be or")
    samples.write_text("")
    done = run_regard("look", "own", "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "--text TEXT" in done.stderr


def decoded(grid: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(grid["data"]), "<f4").reshape(grid["shape"])


def test_cells_follow_from_the_embedded_vectors(runs: Path) -> None:
    """The file has each vector once; what the page computes from them is what the server computes."""
    trace = Session.load(Run.open(runs / "small")).trace("to be or not to be")
    head = embedded_data(trace, "t", "x")["cells"]["1/1"]
    q, k, v = (decoded(head[name]) for name in "qkv")
    cell = trace.cell(1, 1, 9, 4)
    assert (q[9] @ k[4]) == pytest.approx(cell["dot"], rel=1e-4, abs=1e-5)
    largest, total = head["rows"][9]
    weight = np.exp(q[9] @ k[4] * head["scale"] / head["temperature"] - largest) / total
    assert weight == pytest.approx(cell["weight"], rel=1e-4)
    assert v[4].tolist() == pytest.approx(cell["v"], rel=1e-5)


def test_a_short_text_makes_a_small_file() -> None:
    """The model of the recipe `shakespeare`: below one megabyte, every cell included."""
    torch.manual_seed(0)
    text = "a mask is a value that is passed to the operator"
    config = GPTConfig(vocabulary=len(set(text)), context=256, layers=4, heads=4, width=128)
    shown = show(config.build().eval(), text, tokenizer=Characters("".join(sorted(set(text)))))
    assert len(shown.html.encode()) < 1_000_000
    content = embedded_json(shown.html)
    assert content["text"] == text
    assert len(content["cells"]) == 16


def test_rows_of_mechanisms_without_steps_are_embedded() -> None:
    """A linear layer has no cells that rows could be computed from; the softmax layer after it has."""
    torch.manual_seed(0)
    text = "to be or not to be"
    config = GPTConfig(vocabulary=7, context=32, layers=2, heads=2, width=16, attention=LinearConfig(), global_every=2)
    shown = show(config.build().eval(), text, tokenizer=Characters("".join(sorted(set(text)))))
    content = embedded_json(shown.html)
    assert {place.partition("/")[0] for place in content["cells"]} == {"1"}
    assert {place.partition("/")[0] for place in content["rows"]} == {"0"}
    assert "does not follow from one score" in content["trace"]["attentions"][0]["not_stepwise"]
    assert content["trace"]["attentions"][1]["not_stepwise"] is None
