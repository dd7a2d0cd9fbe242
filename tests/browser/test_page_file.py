"""The page as one file: `regard look` from file://, and `regard.show` in a notebook frame. Neither sends a request."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser_kit import Tab, parse_export
from serve_kit import REGARD  # pyright: ignore[reportMissingImports]

from regard.look.views.session import Session
from regard.runs import Run
from regard.serve.html_file import show

TEXT = "one two three four"


def external_requests(tab: Tab, document: str) -> list[str]:
    return [url for url in tab.requests if not url.startswith(("data:", "blob:")) and url.partition("#")[0] != document]


def test_look_file_is_self_contained(chromium: Any, runs: Path, tmp_path: Path) -> None:
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
    page.get_by_role("region", name="Weight computation").wait_for()
    saved = parse_export(tab.export("JSON"))
    assert "".join(saved["trace"]["tokens"]) == TEXT
    assert saved["cell"]["weight"] == pytest.approx(trace.cell(1, 2, 1, 0)["weight"], abs=1e-3)
    page.get_by_label("Query weights").get_by_role("table").wait_for()
    page.get_by_role("button", name="All heads").click()
    page.get_by_role("link", name="1.1").click()
    page.get_by_role("heading", name="layer 1, head 1").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Attention by layer and head").wait_for()
    assert not page.get_by_role("navigation").count()  # the file has only one view
    assert external_requests(tab, out.as_uri()) == []
    tab.origin = out.parent.as_uri()
    tab.close()


def test_notebook_frame(chromium: Any, runs: Path, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    frame_html = show(runs / "plain", TEXT)._repr_html_()
    notebook.write_text(f"<!doctype html><meta charset=utf-8><title>a notebook</title>{frame_html}", encoding="utf-8")
    tab = Tab(chromium, notebook.parent.as_uri())
    tab.page.goto(notebook.as_uri())
    frame = tab.page.frame_locator("iframe")
    frame.get_by_role("button", name="layer 1, head 2").click()
    frame.get_by_role("heading", name="layer 1, head 2").wait_for()
    frame.get_by_role("button", name="All heads").click()
    frame.get_by_role("link", name="2.4").click()
    frame.get_by_role("heading", name="layer 2, head 4").wait_for()
    frame.get_by_role("button", name="Dark theme").click()
    frame.get_by_role("button", name="Light theme").wait_for()
    assert [url for url in external_requests(tab, notebook.as_uri()) if not url.startswith("about:")] == []
    tab.close()
