"""The report in a browser: values under the pointer, zoom, and the tokens of a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.report import gather, write
from regard.runs import Run


def test_curves_and_maps_answer_the_pointer(chromium: Any, runs: Path, tmp_path: Path) -> None:
    run = Run.open(runs / "plain")
    path = write(run, gather(run), tmp_path / "report.html")
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"file://{path}")
    chart = page.locator("svg.chart[data-plot]").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    assert "training: " in page.locator(".tip").inner_text()

    def labels() -> list[str]:
        return chart.locator("text.x").all_text_contents()

    before = labels()
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle)
    page.mouse.up()
    assert labels() != before
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], middle)
    assert labels() == before
    drawn = page.locator("svg.map[data-map]").first
    drawn.scroll_into_view_if_needed()
    box = drawn.bounding_box()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.8 * box["height"])
    page.wait_for_timeout(300)
    page.mouse.move(box["x"] + 0.1 * box["width"] + 1, box["y"] + 0.8 * box["height"])
    shown = page.locator(".tip").inner_text()
    assert shown.startswith("query ")
    assert "weight " in shown
    assert errors == []
    page.close()
