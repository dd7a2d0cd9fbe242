"""The page in one file: `regard look` from file://, and `regard.show` in a notebook's frame. Neither asks anybody."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser_kit import Tab, told
from serve_kit import REGARD  # pyright: ignore[reportMissingImports]

from regard.look.views.session import Session
from regard.runs import Run
from regard.serve.show import show

TEXT = "one two three four"


def asked_elsewhere(tab: Tab, own: str) -> list[str]:
    return [url for url in tab.asked if not url.startswith(("data:", "blob:")) and url.partition("#")[0] != own]


def test_the_file_of_look_works_alone(chromium: Any, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "look.html"
    words = ["look", str(runs / "plain"), "--text", TEXT, "--out", str(out)]
    subprocess.run([*REGARD, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    tab = Tab(chromium, "file:", accept_downloads=True)
    tab.page.goto(out.as_uri())
    page, trace = tab.page, Session.load(Run.open(runs / "plain")).trace(TEXT)
    page.get_by_role("button", name="layer 2, head 3").click()
    canvas = page.get_by_role("application", name=f"Attention map, {len(TEXT)} queries")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="The cell worked out").wait_for()
    saved = told(tab.exported("JSON"))
    assert "".join(saved["trace"]["tokens"]) == TEXT
    assert saved["cell"]["weight"] == pytest.approx(trace.cell(1, 2, 1, 0)["weight"], abs=1e-3)
    page.get_by_label("One row").get_by_role("table").wait_for()
    page.get_by_role("button", name="All heads").click()
    page.get_by_role("link", name="1.1").click()
    page.get_by_role("heading", name="layer 1, head 1").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Layers down, heads across").wait_for()
    assert not page.get_by_role("navigation").count()  # there is nothing else in it
    assert asked_elsewhere(tab, out.as_uri()) == []
    tab.origin = out.parent.as_uri()
    tab.close()


def test_a_notebooks_frame_shows_the_same(chromium: Any, runs: Path, tmp_path: Path) -> None:
    book = tmp_path / "notebook.html"
    shown = show(runs / "plain", TEXT)._repr_html_()
    book.write_text(f"<!doctype html><meta charset=utf-8><title>a notebook</title>{shown}", encoding="utf-8")
    tab = Tab(chromium, book.parent.as_uri())
    tab.page.goto(book.as_uri())
    frame = tab.page.frame_locator("iframe")
    frame.get_by_role("button", name="layer 1, head 2").click()
    frame.get_by_role("heading", name="layer 1, head 2").wait_for()
    frame.get_by_role("button", name="All heads").click()
    frame.get_by_role("link", name="2.4").click()
    frame.get_by_role("heading", name="layer 2, head 4").wait_for()
    frame.get_by_role("button", name="Dark page").click()
    frame.get_by_role("button", name="Light page").wait_for()
    assert [url for url in asked_elsewhere(tab, book.as_uri()) if not url.startswith("about:")] == []
    tab.close()
