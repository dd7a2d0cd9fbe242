"""Probes view: logit lens, rollout, head roles, ablation and activation patching, with the attention maps."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_kit import Tab, parse_export

from regard.look.views.session import Session
from regard.runs import Run

TEXT = "one two three four one two"
OTHER = "one two three five one two"


@pytest.fixture(scope="module")
def session(runs: Path) -> Session:
    return Session.load(Run.open(runs / "plain"))


def test_logit_lens(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Run").click()
    table = page.get_by_role("region", name="Logit lens").get_by_role("table")
    table.wait_for()
    rows = [row.split("\t") for row in table.get_by_role("row").all_inner_texts()]
    assert [row[0].strip() for row in rows[1:]] == ["layer 2", "layer 1", "embedding", "next token"]
    lens = session.lens(TEXT, None)
    for row, top, ranks in zip(rows[1:-1], reversed(lens["top"]), reversed(lens["target_rank"]), strict=True):
        for cell, prediction, rank in zip(row[1:], top, ranks, strict=True):
            assert cell.strip().startswith(prediction["text"].replace(" ", "␣").replace("\n", "⏎"))
            assert ("•" in cell) == (rank == 0)
    page.get_by_role("heading", name="Attention maps").wait_for()


def test_rollout(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain", text=TEXT, probe="rollout")
    canvas = page.get_by_role("application", name=f"Attention rollout, {len(TEXT)} queries down")
    page.get_by_text("Attention is averaged over heads").wait_for()
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_text("receives").wait_for()
    rollout = session.trace(TEXT).rollout(256)
    text = page.get_by_text("receives").inner_text()
    assert text.startswith("n receives")
    assert float(text.split("%")[0].split()[-1]) == pytest.approx(100 * rollout[1, 0], abs=0.06)


def test_whole_model(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain", text=TEXT, probe="model")
    table = page.get_by_role("region", name="Whole model").get_by_role("table")
    table.get_by_role("rowheader", name="prediction").first.wait_for()
    names = [name.split("\n")[-1].strip() for name in table.get_by_role("rowheader").all_inner_texts()]
    layer = ["prediction", "residual", "feed-forward", "attention"]
    assert [name.split("  ")[-1].split(" ", 2)[-1] if name.startswith("layer") else name for name in names][:4] == layer
    expected = session.residual(TEXT)
    saved = parse_export(tab.export("JSON"))["residual"]
    assert saved["residual"][1] == pytest.approx(expected["residual"][1], rel=1e-4)
    assert [part["effect"] for part in saved["parts"]] == pytest.approx(
        [part["effect"] for part in expected["parts"]], abs=1e-4
    )


def test_head_roles_are_sorted(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain", text=TEXT, probe="roles")
    table = page.get_by_role("tabpanel").get_by_role("table")
    table.wait_for()
    page.get_by_role("button", name="previous", exact=True).click()
    scores = [float(row.split("\t")[1]) for row in table.get_by_role("row").all_inner_texts()[1:]]
    expected = [head["roles"]["previous"] for head in session.trace(TEXT).measures["heads"]]
    assert scores == [round(score, 2) for score in sorted((round(score, 2) for score in expected), reverse=True)]
    best = table.get_by_role("link").first
    name = best.inner_text()
    best.click()
    layer, head = name.split(".")
    page.get_by_role("heading", name=f"layer {layer}, head {head}").wait_for()
    page.go_back()
    table.wait_for()


def test_ablation_changes_loss_and_text(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain", text=TEXT, probe="ablation")
    page.get_by_role("button", name="layer 1, head 2").click()
    page.get_by_text("Generated text before").wait_for()
    expected = session.ablate(TEXT, [(0, 1)], count=40, seed=1)
    assert expected["loss"]["after"] != pytest.approx(expected["loss"]["before"], abs=1e-4)
    saved = parse_export(tab.export("JSON"))["ablation"]
    for key in ("before", "after"):
        assert saved["loss"][key] == pytest.approx(expected["loss"][key], abs=1e-4)
        assert saved["text"][key] == expected["text"][key]
    assert [text.text_content() for text in page.locator("pre.passage").all()] == list(expected["text"].values())
    assert tab.params()["ablated"] == "0.1"
    tab.page.reload()
    page.get_by_text("Generated text before").wait_for()
    assert page.get_by_role("button", name="layer 1, head 2").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Clear").click()
    page.get_by_text("Select a head to ablate it").wait_for()


def test_patching_changes_the_prediction(tab: Tab, session: Session) -> None:
    page = tab.open("probes", run="plain", text=TEXT, probe="patching")
    page.get_by_label("Source text of the activations").fill(OTHER)
    page.get_by_label("Layer", exact=True).select_option("1")
    positions = page.get_by_role("group", name="Positions").get_by_role("button")
    positions.first.wait_for()
    for position in (14, 15, 16, 17):
        positions.nth(position).click()
    page.get_by_role("button", name="Patch", exact=True).click()
    page.get_by_role("columnheader", name="Next token after").wait_for()
    expected = session.patch(TEXT, OTHER, 1, [14, 15, 16, 17])
    saved = parse_export(tab.export("JSON"))["patching"]
    assert saved["loss"]["after"] == pytest.approx(expected["loss"]["after"], abs=1e-4)
    assert saved["loss"]["after"] != saved["loss"]["before"]
    changed = [i for i, (before, after) in enumerate(saved["per_token"]) if before is not None and before != after]
    assert min(changed) > 14  # the losses before the first patched token do not change


def test_probes_of_a_translation(tab: Tab) -> None:
    page = tab.open("probes", run="transformer", text="one two", target="eins zwei")
    page.get_by_role("region", name="Logit lens").get_by_role("table").wait_for()
    for probe in ("Head roles", "Head ablation"):
        page.get_by_role("tab", name=probe).click()
        tab.wait_until("document.querySelector('#probe-panel').ariaLabel === arg", probe)
    page.get_by_role("grid").get_by_role("button").first.click()
    page.get_by_text("Generated text before").wait_for()
