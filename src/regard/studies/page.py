"""A study as one HTML page and one JSON file: the question, the answer in words, the charts, the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.pages import html
from regard.pages.charts import Series
from regard.pages.html import ChartSection, chart_section
from regard.runs.disk import replace_file, writing


@dataclass(frozen=True)
class Study:
    """The question and the result. The answer follows from the numbers."""

    name: str
    question: str
    answer: list[str]
    charts: list[ChartSection]
    numbers: dict[str, Any]  # everything that was measured, for the JSON file
    setting: str  # sizes, data, seed, machine


def lines(curves: Mapping[str, Iterable[tuple[float, float]]], marks: bool = True) -> list[Series]:
    """Curves as the lines of a chart."""
    return [Series(name, list(points), color, marks) for color, (name, points) in enumerate(curves.items())]


def page(study: Study) -> str:
    """The whole document."""
    parts = [
        html.heading(study.question, f"study {study.name} · {study.setting}"),
        html.paragraphs(study.answer),
        *(chart_section(chart) for chart in study.charts),
    ]
    return html.page(study.name, parts)


def write(study: Study, folder: Path) -> Path:
    """Write ``NAME.html`` and ``NAME.json`` into the folder; return the path of the page."""
    summary = {"name": study.name, "question": study.question, "answer": study.answer, "setting": study.setting}
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{study.name}.json", json.dumps({**summary, **study.numbers}, indent=1).encode())
        replace_file(folder / f"{study.name}.html", page(study).encode())
    return folder / f"{study.name}.html"
