"""Attention view: from all heads to the computation of one weight, compared with the model."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser_kit import Tab, parse_export
from serve_kit import run_server  # pyright: ignore[reportMissingImports]

from regard.config import to_toml
from regard.data import TextConfig
from regard.generate.load import load_model
from regard.look import attentions, dense_weights, passage
from regard.look.views.session import Session
from regard.models import RecurrentConfig
from regard.runs import Run, environment
from regard.train import Experiment

TEXT = "one two three four one two"
PAIR = {"text": "one two three four", "target": "eins zwei drei vier"}


def dense_maps(run: Run, text: str) -> list[np.ndarray]:
    """Return the weights [H, N, N] of every layer."""
    model, tokenizer, *_ = load_model(run)
    tokens = torch.as_tensor(tokenizer.encode(text))[None]
    found = attentions(model, lambda: model(tokens))
    return [dense_weights(one)[0].numpy() for one in found]


@pytest.fixture(scope="module")
def maps(runs: Path) -> list[np.ndarray]:
    return dense_maps(Run.open(runs / "plain"), TEXT)


def parse_number(text: str) -> float:
    """Parse a number in the format of the page."""
    return float(text.replace("−", "-").strip("()"))


def test_from_all_heads_to_one_weight(tab: Tab, maps: list[np.ndarray]) -> None:
    page = tab.open("attention", run="plain")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Run").click()
    grid = page.get_by_role("grid", name="Layers and heads")
    grid.wait_for()
    assert grid.get_by_role("gridcell").count() == 8
    page.get_by_role("button", name="layer 2, head 3").click()
    page.get_by_role("heading", name="layer 2, head 3").wait_for()
    canvas = page.get_by_role(
        "application", name=f"Attention map, {len(TEXT)} queries down and {len(TEXT)} keys across"
    )
    canvas.focus()
    page.keyboard.press("Home")
    for _ in range(9):
        page.keyboard.press("ArrowDown")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    tab.wait_until(
        "[...document.querySelectorAll('[aria-live]')].some((element) => element.textContent.includes('query 9'))"
    )
    announced = page.locator("[aria-live]", has_text="weight 0").inner_text()
    assert float(announced.rpartition(" ")[2]) == pytest.approx(
        maps[1][2, 9, 4], abs=0.006
    )  # a tile holds 8 bits of the square root
    page.keyboard.press("Enter")
    detail = page.get_by_role("region", name="Weight computation")
    detail.wait_for()
    assert (tab.params()["query"], tab.params()["key"]) == ("9", "4")
    cell = parse_export(tab.export("JSON"))["cell"]
    assert cell["weight"] == pytest.approx(float(maps[1][2, 9, 4]), abs=1e-5)
    assert sum(cell["terms"]) == pytest.approx(cell["dot"], abs=1e-4)
    # Each displayed equation holds.
    lines = [line for line in detail.locator(".sum").all_inner_texts() if "=" in line]
    scale = re.search(r"(\S+) × (\S+) = (\S+)", lines[1])
    assert scale
    assert f"{parse_number(scale[1]) * parse_number(scale[2]):.4g}" == f"{parse_number(scale[3]):.4g}"
    soft = next(line for line in lines if line.startswith("exp("))
    assert soft.startswith("exp(score − row maximum) / sum over the row")
    found = re.search(r"exp\((\S+) − \(?(.+?)\)+ / (\S+) = (\S+) / \3 = (\S+)", soft)
    assert found
    score, most, total, part, weight = found.groups()
    assert f"{math.exp(parse_number(score) - parse_number(most)):.4g}" == f"{parse_number(part):.4g}"
    assert f"{parse_number(part) / parse_number(total):.4g}" == f"{parse_number(weight):.4g}"
    assert parse_number(soft.rpartition("= ")[2]) == pytest.approx(float(maps[1][2, 9, 4]), rel=1e-3)
    canvas.focus()
    page.keyboard.press("Escape")
    detail.wait_for(state="detached")


def test_hovering_a_row_shows_its_weights(tab: Tab, maps: list[np.ndarray]) -> None:
    page = tab.open("attention", run="plain", text=TEXT, layer=0, head=1)
    canvas = page.get_by_role("application", name="Attention map")
    canvas.hover(position={"x": 200, "y": canvas.evaluate("canvas => canvas.clientHeight") * 0.6})
    row_card = page.get_by_label("Query weights")
    row_card.get_by_role("table").wait_for()
    query = int(re.findall(r"query (\d+)", row_card.inner_text())[0])
    assert query > 5
    shown = [line.split() for line in row_card.get_by_role("row").all_inner_texts()[1:]]
    for *_, key, weight in shown:
        percent = 0.0 if weight.startswith("<") else float(weight.strip("%>"))
        assert percent == pytest.approx(100 * maps[0][1, query, int(key)], abs=0.06)
    strongest = int(maps[0][1, query].argmax())
    assert int(shown[0][-2]) == strongest
    row_card.get_by_role("button").first.click()
    page.get_by_role("region", name="Weight computation").wait_for()
    assert tab.params()["key"] == str(strongest)


def test_url_holds_the_state(tab: Tab) -> None:
    page = tab.open("attention", run="plain", text=TEXT)
    page.get_by_role("button", name="layer 1, head 4").click()
    page.get_by_role("heading", name="layer 1, head 4").wait_for()
    page.get_by_role("button", name="layer 2, head 1").click()
    page.get_by_role("heading", name="layer 2, head 1").wait_for()
    page.go_back()
    page.get_by_role("heading", name="layer 1, head 4").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Attention by layer and head").wait_for()
    page.go_forward()
    page.go_forward()
    page.get_by_role("heading", name="layer 2, head 1").wait_for()
    page.get_by_role("application", name="Attention map").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    tab.wait_until("location.hash.includes('at=')")
    before = page.get_by_role("application", name="Attention map").evaluate("canvas => canvas.toDataURL()")
    tab.page.reload()
    page.get_by_role("heading", name="layer 2, head 1").wait_for()
    page.get_by_role("button", name="Fit").wait_for()
    assert page.get_by_role("button", name="Fit").is_enabled()
    tab.wait_until("document.querySelector('canvas[role=application]').toDataURL() === arg", before)
    page.get_by_role("application", name="Attention map").focus()
    page.keyboard.press("0")
    tab.wait_until("!location.hash.includes('at=')")


def test_arrow_keys_move_in_the_grid_of_heads(tab: Tab) -> None:
    page = tab.open("attention", run="plain", text=TEXT)
    page.get_by_role("button", name="layer 1, head 1").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="layer 2, head 3").wait_for()


def test_sparse_mask(tab: Tab, runs: Path) -> None:
    maps = dense_maps(Run.open(runs / "windowed"), TEXT)
    page = tab.open("attention", run="windowed", text=TEXT, layer=0, head=0, query=20, key=14)
    page.get_by_text("the weight is 0").wait_for()
    row = page.get_by_label("Query weights")
    row.get_by_text("7 visible keys").wait_for()  # a window of six and the sink
    keys = [int(line.split()[-2]) for line in row.get_by_role("row").all_inner_texts()[1:]]
    assert set(keys) == {0, *range(15, 21)}
    assert (maps[0][0, 20] > 0).sum() == 7


def test_cross_attention_of_a_translation(tab: Tab, runs: Path) -> None:
    page = tab.open("attention", run="transformer", **PAIR)
    page.get_by_role("grid").wait_for()
    names = (
        page.get_by_role("grid")
        .get_by_role("button")
        .evaluate_all("buttons => buttons.map((button) => button.ariaLabel)")
    )
    cross = next(name for name in names if name.startswith("decoder layer 1, cross, head 2"))
    page.get_by_role("button", name=cross).click()
    page.get_by_role("heading", name="decoder layer 1, cross, head 2").wait_for()
    trace = Session.load(Run.open(runs / "transformer")).trace(*PAIR.values())
    layer = int(tab.params()["layer"])
    canvas = page.get_by_role("application", name="Attention map")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Weight computation").wait_for()
    saved = parse_export(tab.export("JSON"))
    assert saved["selected"] == {"query": 1, "key": 0}
    assert saved["cell"]["weight"] == pytest.approx(trace.cell(layer, 1, 1, 0)["weight"], abs=1e-5)
    assert saved["attention"]["keys"] == len(saved["trace"]["tokens"])
    assert "<end>" in saved["trace"]["predicted_tokens"]


def test_missing_target_is_translated_by_the_model(tab: Tab) -> None:
    page = tab.open("attention", run="transformer")
    page.get_by_label("Source text").fill("one two")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("grid").wait_for()
    assert tab.params()["target"] == page.get_by_label("Target text").input_value()


def test_bahdanau_alignment(tab: Tab, runs: Path) -> None:
    page = tab.open("attention", run="bahdanau", **PAIR, layer=0, head=0, query=1, key=2)
    page.get_by_role("heading", name="cross, head 1").wait_for()
    page.get_by_role("region", name="Weight computation").wait_for()
    page.get_by_label("Query weights").get_by_role("table").wait_for()
    saved = parse_export(tab.export("JSON"))
    trace = Session.load(Run.open(runs / "bahdanau")).trace(*PAIR.values())
    expected = trace.row(0, 0, 1)
    assert dict(map(tuple, saved["row"]["weights"])) == pytest.approx(dict(map(tuple, expected["weights"])), abs=1e-5)
    assert sum(weight for _, weight in saved["row"]["weights"]) == pytest.approx(1, abs=1e-4)
    assert saved["cell"]["exp"] / saved["cell"]["sum"] == pytest.approx(saved["cell"]["weight"], abs=1e-5)


def test_opens_with_a_held_out_passage_of_the_newest_run_with_a_checkpoint(
    chromium: Any, runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "plain", tmp_path / "plain")
    shutil.copytree(runs / "plain", tmp_path / "begun", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "begun" / "environment.json").touch()  # the newest
    data = Run.open(runs / "plain").load(TextConfig, "data").build(64)
    held_out = data.tokenizer.decode(passage(data, 48).tokens.tolist())
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        for view, content in (("attention", "gridcell"), ("sampling", "table"), ("probes", "table")):
            page = tab.open(view)
            page.get_by_text("A held-out passage").wait_for()
            page.get_by_role(content).first.wait_for()
            assert page.get_by_label("Run", exact=True).input_value() == "plain"
            assert len(tab.params()["text"]) > 20
            assert held_out.endswith(tab.params()["text"])
        tab.close()


def test_a_view_opens_with_a_run_that_it_supports(chromium: Any, runs: Path, tmp_path: Path) -> None:
    """The newest run is recurrent: it has no attention."""
    shutil.copytree(runs / "plain", tmp_path / "plain")
    recurrent = replace(Run.open(runs / "plain").load(Experiment), model=RecurrentConfig(vocabulary=17, context=64))
    run = Run.create(tmp_path, "recurrent", to_toml(recurrent), environment())
    shutil.copytree(runs / "plain" / "checkpoints", run.path / "checkpoints", dirs_exist_ok=True)
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        page = tab.open("attention")
        page.get_by_role("gridcell").first.wait_for()
        assert page.get_by_label("Run", exact=True).input_value() == "plain"
        page = tab.open("attention", run="recurrent", text="one")
        page.get_by_text("This model has no attention").wait_for()
        assert page.get_by_role("alert").count() == 1
        tab.close()


def test_checkpoint_choice(tab: Tab, runs: Path) -> None:
    run = Run.open(runs / "plain")
    page = tab.open("attention", run="plain", text=TEXT)
    page.get_by_label("Checkpoint").select_option("20")
    loss = Session.load(run, step=20).trace(TEXT).loss
    page.get_by_text(f"loss {loss:.3g} nats").wait_for()
    page.keyboard.press("4")  # the choice is kept in other views
    page.get_by_role("region", name="Logit lens").get_by_role("table").wait_for()
    assert page.get_by_label("Checkpoint").input_value() == "20"
    lens = Session.load(run, step=20).lens(TEXT)
    saved = parse_export(tab.export("JSON"))["lens"]
    assert [row["text"] for row in saved["top"][-1]] == [row["text"] for row in lens["top"][-1]]


def test_lines_between_tokens(tab: Tab, maps: list[np.ndarray]) -> None:
    page = tab.open("attention", run="plain", text=TEXT, layer=1, head=2)
    page.get_by_role("button", name="Lines").click()
    drawing = page.get_by_role("img", name=f"Lines from {len(TEXT)} queries on the left")
    drawing.locator("path").nth(3).wait_for()
    tab.wait_until("document.querySelectorAll('svg path').length === arg", int((maps[1][2] >= 0.0499).sum()))
    page.get_by_role("button", name="head 1", exact=True).click()
    both = int((maps[1][2] >= 0.0499).sum() + (maps[1][0] >= 0.0499).sum())
    tab.wait_until("Math.abs(document.querySelectorAll('svg path').length - arg) <= 3", both)
    drawing.locator(".token").nth(9).hover()  # the lines of one query, and its weights in the table
    page.get_by_label("Query weights").get_by_text("query 9 ").wait_for()
    assert drawing.locator("path").count() < both
    drawing.locator(".token").nth(9).click()
    page.get_by_role("region", name="Weight computation").wait_for()
    assert (tab.params()["query"], tab.params()["key"]) == ("9", str(int(maps[1][2, 9].argmax())))


def test_head_table_says_where_its_scores_come_from(tab: Tab) -> None:
    page = tab.open("attention", run="plain", text=TEXT)
    page.get_by_text(
        "on this input that fits the role; induction and positional are measured on random texts"
    ).wait_for()
    page.get_by_text("What the roles mean").click()
    page.get_by_text("attends to the previous token").first.wait_for()
    page.get_by_role("button", name="layer 1, head 1").hover()
    assert re.search(r"layer 1, head 1\n.+ → .+: .*%", page.locator(".tip").inner_text())
    page = tab.open("attention", run="transformer", **PAIR)
    row = page.get_by_role("row", name=re.compile("^d1×.1"))  # cross-attention has no previous token
    row.wait_for()
    cells = row.inner_text().split("\t")
    assert cells[1] == "–"
    assert "induction" not in page.get_by_role("table").inner_text()
