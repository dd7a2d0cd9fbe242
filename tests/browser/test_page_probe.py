"""Probe: lens, rollout, roles, heads switched off, activations patched; beside them, always, the attention."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_kit import PIXELS, Tab, told

from regard.look.views.session import Session
from regard.runs import Run

TEXT = "one two three four one two"
OTHER = "one two three five one two"


@pytest.fixture(scope="module")
def session(runs: Path) -> Session:
    return Session.load(Run.open(runs / "plain"))


def test_the_lens_says_what_each_layer_would(tab: Tab, session: Session) -> None:
    page = tab.open("probe", run="plain")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Read").click()
    table = page.get_by_role("region", name="Logit lens").get_by_role("table")
    table.wait_for()
    rows = [row.split("\t") for row in table.get_by_role("row").all_inner_texts()]
    assert [row[0].strip() for row in rows[1:]] == ["layer 2", "layer 1", "embedding"]
    lens = session.lens(TEXT, None)
    for row, top, ranks in zip(rows[1:], reversed(lens["top"]), reversed(lens["rank_of_actual"]), strict=True):
        for cell, guesses, rank in zip(row[1:], top, ranks, strict=True):
            best = guesses[0] if isinstance(guesses, list) else guesses
            assert cell.strip().startswith(best["text"].replace(" ", "␣").replace("\n", "⏎"))
            assert ("•" in cell) == (rank == 0)
    page.get_by_role("heading", name="The attention beside it").wait_for()


def test_rollout_is_a_map_with_words(tab: Tab, session: Session) -> None:
    page = tab.open("probe", run="plain", text=TEXT, part="rollout")
    canvas = page.get_by_role("application", name="Attention rollout")
    page.get_by_text("Averaged over heads").wait_for()
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_text("draws").wait_for()
    rolled = session.trace(TEXT).rollout(256)
    said = page.get_by_text("draws").inner_text()
    assert said.startswith("n draws")
    assert float(said.split("%")[0].split()[-1]) == pytest.approx(100 * rolled[1, 0], abs=0.06)
    width = canvas.evaluate(f"canvas => ({PIXELS})(canvas).width")
    assert width == len(TEXT)


def test_roles_are_scored_and_sorted(tab: Tab, session: Session) -> None:
    page = tab.open("probe", run="plain", text=TEXT, part="roles")
    table = page.get_by_role("tabpanel").get_by_role("table")
    table.wait_for()
    page.get_by_role("button", name="previous").click()
    scores = [float(row.split("\t")[1]) for row in table.get_by_role("row").all_inner_texts()[1:]]
    real = [one["roles"]["previous"] for one in session.trace(TEXT).measures()["heads"]]
    assert scores == [round(score, 2) for score in sorted((round(one, 2) for one in real), reverse=True)]
    best = table.get_by_role("link").first
    name = best.inner_text()
    best.click()
    layer, head = name.split(".")
    page.get_by_role("heading", name=f"layer {layer}, head {head}").wait_for()
    page.go_back()
    table.wait_for()


def test_a_head_switched_off_changes_loss_and_text(tab: Tab, session: Session) -> None:
    page = tab.open("probe", run="plain", text=TEXT, part="heads")
    page.get_by_role("button", name="layer 1, head 2").click()
    page.get_by_text("It goes on, before").wait_for()
    expected = session.ablate(TEXT, [(0, 1)], count=40, seed=1, other=None)
    assert expected["loss"]["after"] != pytest.approx(expected["loss"]["before"], abs=1e-4)
    saved = told(tab.exported("JSON"))["ablated"]
    for when in ("before", "after"):
        assert saved["loss"][when] == pytest.approx(expected["loss"][when], abs=1e-4)
        assert saved["text"][when] == expected["text"][when]
    assert [text.text_content() for text in page.locator("pre.passage").all()] == list(expected["text"].values())
    assert tab.params()["off"] == "0.1"
    tab.page.reload()
    page.get_by_text("It goes on, before").wait_for()
    assert page.get_by_role("button", name="layer 1, head 2").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="All on").click()
    page.get_by_text("Press a head to switch it off").wait_for()


def test_an_activation_from_another_text_moves_the_answer(tab: Tab, session: Session) -> None:
    page = tab.open("probe", run="plain", text=TEXT, part="patch")
    page.get_by_label("The other text").fill(OTHER)
    page.get_by_label("Replace").select_option("1")
    places = page.get_by_role("group", name="At these tokens").get_by_role("button")
    places.first.wait_for()
    for at in (14, 15, 16, 17):
        places.nth(at).click()
    page.get_by_role("button", name="Patch", exact=True).click()
    page.get_by_role("columnheader", name="Next, after").wait_for()
    expected = session.patch(TEXT, OTHER, 1, [14, 15, 16, 17])
    saved = told(tab.exported("JSON"))["patched"]
    assert saved["loss"]["after"] == pytest.approx(expected["loss"]["after"], abs=1e-4)
    assert saved["loss"]["after"] != saved["loss"]["before"]
    changed = [at for at, (before, after) in enumerate(saved["per_token"]) if before is not None and before != after]
    assert min(changed) > 14  # what comes before the first patched token is told as before


def test_a_translation_is_probed_too(tab: Tab) -> None:
    page = tab.open("probe", run="transformer", text="one two", other="eins zwei")
    page.get_by_role("region", name="Logit lens").get_by_role("table").wait_for()
    for part in ("Head roles", "Switch heads off"):
        page.get_by_role("tab", name=part).click()
        tab.until("document.querySelector('#probe-panel').ariaLabel === arg", part)
    page.get_by_role("grid").get_by_role("button").first.click()
    page.get_by_text("It goes on, before").wait_for()
