"""Sampling view: one token at a time, with adjustable settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_kit import Tab, parse_export

from regard.generate import Sampling
from regard.look.views.session import Session
from regard.runs import Run

TEXT = "one two thr"


def wait_for_result(tab: Tab) -> None:
    """Wait until the server's probabilities for the current settings are shown."""
    tab.page.get_by_text("nats", exact=False).first.wait_for()
    tab.page.wait_for_load_state("networkidle")


def bar_labels(tab: Tab) -> dict[str, str]:
    rows = tab.page.locator(".bars tbody tr").all_inner_texts()
    return {row.split()[0]: row.split()[1] for row in rows}


def test_sliders_change_the_distribution(tab: Tab, runs: Path) -> None:
    page = tab.open("sampling", run="plain")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Start").click()
    page.get_by_role("heading", name="Next token").wait_for()
    wait_for_result(tab)
    first = parse_export(tab.export("JSON"))
    session = Session.load(Run.open(runs / "plain"))
    plain = session.next(TEXT, Sampling(1.0))
    assert [item["text"] for item in first["step"]["candidates"]] == [item["text"] for item in plain["candidates"]]
    for shown, expected in zip(first["probabilities"], plain["candidates"], strict=True):
        assert shown["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    before = bar_labels(tab)
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top-k").fill("3")
    tab.wait_until("document.querySelectorAll('.bars tr.excluded').length > 0")
    wait_for_result(tab)
    assert tab.params() == {"run": "plain", "text": TEXT, "temperature": "0.5", "top_k": "3"}
    cold = session.next(TEXT, Sampling(0.5, top_k=3))
    after = parse_export(tab.export("JSON"))["probabilities"]
    assert sum(item["kept"] for item in after) == 3
    for shown, expected in zip(after, cold["candidates"], strict=True):
        assert shown["probability"] == pytest.approx(expected["sampling_probability"], abs=1e-4)
    assert list(bar_labels(tab).values()).count("excluded") == len(bar_labels(tab)) - 3
    assert bar_labels(tab) != before
    page.get_by_label("Top-k").fill("0")
    page.get_by_label("Top-p").fill("0.5")
    tab.wait_until("location.hash.includes('top_p=0.5')")
    wait_for_result(tab)
    nucleus = session.next(TEXT, Sampling(0.5, top_p=0.5))
    assert [item["kept"] for item in parse_export(tab.export("JSON"))["probabilities"]] == [
        item["kept"] for item in nucleus["candidates"]
    ]


def test_tokens_are_sampled_as_on_the_command_line(tab: Tab, runs: Path) -> None:
    page = tab.open("sampling", run="plain", text=TEXT, seed=5)
    sample = page.get_by_role("button", name="Sample", exact=True)
    sample.wait_for()
    session, text, sizes = Session.load(Run.open(runs / "plain")), TEXT, []
    for position in range(4):
        wait_for_result(tab)
        step = session.next(text, Sampling(1.0), seed=5, position=position)
        text += step["sampled"]["text"]
        sizes.append(step["cache"]["tokens"])
        sample.click()
        tab.wait_until("new URLSearchParams(location.hash.split('?')[1]).get('text') === arg", text)
    assert sizes == sorted(set(sizes))
    wait_for_result(tab)
    page.get_by_role("img", name="KV cache from").wait_for()  # the chart appears when the cache has grown
    assert page.get_by_role("region", name="Sampled tokens").locator(".chips span").count() == 4
    page.get_by_text(f"for {len(text)} tokens").wait_for()
    tab.page.reload()
    page.get_by_text(f"for {len(text)} tokens").wait_for()
    page.get_by_role("button", name="Append").first.click()
    tab.wait_until("new URLSearchParams(location.hash.split('?')[1]).get('text').length === arg", len(text) + 1)


def test_beam_search_tree_and_hypotheses(tab: Tab, runs: Path) -> None:
    page = tab.open("sampling", run="plain", text=TEXT)
    page.get_by_label("beams").fill("2")
    page.get_by_label("tokens", exact=True).fill("5")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("img", name="Beam search tree").wait_for()
    nodes = Session.load(Run.open(runs / "plain")).beam(TEXT, 2, 5)["nodes"]
    assert page.locator("svg g circle").count() == len(nodes) + 1  # and the prompt
    parents = {node["parent"] for node in nodes}
    leaves = [node for node in nodes if node["finished"] or (node["alive"] and node["id"] not in parents)]
    best = max(leaves, key=lambda node: node["score"])
    by_id = {node["id"]: node for node in nodes}
    hypothesis, current = "", best
    while current is not None:
        hypothesis, current = current["text"] + hypothesis, by_id.get(current["parent"])
    row = page.get_by_role("region", name="Beam search").locator("tbody tr").first
    assert row.locator("code").text_content() == hypothesis
    assert [node["text"] for node in parse_export(tab.export("JSON"))["beam"]] == [node["text"] for node in nodes]


def test_translation_until_the_end_token(tab: Tab) -> None:
    page = tab.open("sampling", run="transformer", text="one two", temperature=0.05)
    page.get_by_role("button", name="Sample 20").click()
    page.get_by_role("button", name="Sample 20").wait_for()  # the button reads Stop while it generates
    tab.wait_until("location.hash.includes('target=')")
    assert page.get_by_label("Target text so far").input_value().strip().startswith("eins")


def test_a_text_that_the_tokenizer_cannot_encode(tab: Tab) -> None:
    """The error is on the page, not in the browser's console: closing the tab fails on console errors."""
    for view in ("sampling", "probes", "attention"):
        page = tab.open(view, run="plain", text="漢字")
        page.get_by_role("alert").wait_for()
        assert page.get_by_role("alert").inner_text()
