"""Step: one token at a time, with the distribution in one's hands."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_kit import Tab, told

from regard.generate import Sampling
from regard.look.views.session import Session
from regard.runs import Run

TEXT = "one two thr"


def settled(tab: Tab) -> None:
    """The server's own answer for the settings of the address is shown."""
    tab.page.get_by_text("nats", exact=False).first.wait_for()
    tab.page.wait_for_load_state("networkidle")


def bars(tab: Tab) -> dict[str, str]:
    rows = tab.page.locator(".bars tbody tr").all_inner_texts()
    return {row.split()[0]: row.split()[1] for row in rows}


def test_sliders_move_the_distribution(tab: Tab, runs: Path) -> None:
    page = tab.open("step", run="plain")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Start here").click()
    page.get_by_role("heading", name="The next token").wait_for()
    settled(tab)
    first = told(tab.exported("JSON"))
    session = Session.load(Run.open(runs / "plain"))
    plain = session.next(TEXT, Sampling(1.0))
    assert [one["text"] for one in first["step"]["next"]] == [one["text"] for one in plain["next"]]
    for shown, real in zip(first["chances"], plain["next"], strict=True):
        assert shown["probability"] == pytest.approx(real["probability"], abs=1e-4)
    before = bars(tab)
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top-k").fill("3")
    tab.until("document.querySelectorAll('.bars tr.out').length > 0")
    settled(tab)
    assert tab.params() == {"run": "plain", "text": TEXT, "temperature": "0.5", "k": "3"}
    cold = session.next(TEXT, Sampling(0.5, top_k=3))
    after = told(tab.exported("JSON"))["chances"]
    assert sum(one["kept"] for one in after) == 3
    for shown, real in zip(after, cold["next"], strict=True):
        assert shown["probability"] == pytest.approx(real["chosen_probability"], abs=1e-4)
    assert list(bars(tab).values()).count("out") == len(bars(tab)) - 3
    assert bars(tab) != before
    page.get_by_label("Top-k").fill("0")
    page.get_by_label("Top-p").fill("0.5")
    tab.until("location.hash.includes('p=0.5')")
    settled(tab)
    nucleus = session.next(TEXT, Sampling(0.5, top_p=0.5))
    assert [one["kept"] for one in told(tab.exported("JSON"))["chances"]] == [one["kept"] for one in nucleus["next"]]


def test_tokens_are_drawn_as_the_command_line_draws_them(tab: Tab, runs: Path) -> None:
    page = tab.open("step", run="plain", text=TEXT, seed=5)
    draw = page.get_by_role("button", name="Draw", exact=True)
    draw.wait_for()
    session, text, sizes = Session.load(Run.open(runs / "plain")), TEXT, []
    for at in range(4):
        settled(tab)
        drawn = session.next(text, Sampling(1.0), seed=5, position=at)
        text += drawn["drawn"]["text"]
        sizes.append(drawn["state"]["tokens"])
        draw.click()
        tab.until("new URLSearchParams(location.hash.split('?')[1]).get('text') === arg", text)
    assert sizes == sorted(set(sizes))
    settled(tab)
    page.get_by_role("img", name="State from").wait_for()  # it grew, and that is drawn
    assert page.get_by_role("region", name="Drawn").locator(".chips span").count() == 4
    page.get_by_text(f"for {len(text)} tokens").wait_for()
    tab.page.reload()
    page.get_by_text(f"for {len(text)} tokens").wait_for()
    page.get_by_role("button", name="Take").first.click()
    tab.until("new URLSearchParams(location.hash.split('?')[1]).get('text').length === arg", len(text) + 1)


def test_the_beam_is_a_tree_with_its_sentences(tab: Tab, runs: Path) -> None:
    page = tab.open("step", run="plain", text=TEXT)
    page.get_by_label("beams").fill("2")
    page.get_by_label("tokens", exact=True).fill("5")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("img", name="Beam search as a tree").wait_for()
    nodes = Session.load(Run.open(runs / "plain")).beam(TEXT, 2, 5)["nodes"]
    assert page.locator("svg g circle").count() == len(nodes) + 1  # and the text itself
    followed = {node["parent"] for node in nodes}
    ends = [node for node in nodes if node["final"] or (node["alive"] and node["id"] not in followed)]
    best = max(ends, key=lambda node: node["total"])
    known = {node["id"]: node for node in nodes}
    sentence, at = "", best
    while at is not None:
        sentence, at = at["text"] + sentence, known.get(at["parent"])
    row = page.get_by_role("region", name="Beam search").locator("tbody tr").first
    assert row.locator("code").text_content() == sentence
    assert [node["text"] for node in told(tab.exported("JSON"))["beam"]] == [node["text"] for node in nodes]


def test_a_translation_is_written_to_its_end(tab: Tab) -> None:
    page = tab.open("step", run="transformer", text="one two", temperature=0.05)
    page.get_by_role("button", name="Draw 20").click()
    page.get_by_role("button", name="Draw 20").wait_for()  # it says Stop meanwhile
    tab.until("location.hash.includes('other=')")
    assert page.get_by_label("Translation so far").input_value().strip().startswith("eins")
