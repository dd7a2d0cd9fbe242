"""A study as one HTML page and one JSON file: the question, the answer in words, the figures, the numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from regard import __version__
from regard.report.dots import dots
from regard.report.figures import NARROW, WIDE, drawing, legend, table
from regard.report.page import POLICY, section
from regard.report.style import CSS
from regard.report.svg import Axes, Series
from regard.runs.disk import replace_file, writing


@dataclass(frozen=True)
class Chart:
    """A figure of a study."""

    title: str
    about: str
    series: list[Series]
    axes: Axes
    columns: tuple[str, ...] = ()  # of the table behind it
    rows: list[tuple[str, ...]] = field(default_factory=list)
    named: list[tuple[str, float]] = field(default_factory=list)  # in place of series: a value each, in this order
    line: float | None = None  # a value to compare the named ones with


@dataclass(frozen=True)
class Study:
    """What was asked, and what was found. The words follow from the numbers."""

    name: str
    question: str
    answer: list[str]
    charts: list[Chart]
    numbers: dict[str, Any]  # everything that was measured, for programs
    setting: str  # sizes, data, seed, machine


def page(study: Study) -> str:
    """The whole document."""
    words = "".join(f"<p>{escape(text)}</p>" for text in study.answer)
    parts = [
        f"<header><h1>{escape(study.question)}</h1>"
        f'<p class="sub">study {escape(study.name)} · {escape(study.setting)}</p></header>',
        f'<div class="lead">{words}</div>',
        *(section(chart.title, chart.about, _figure(chart)) for chart in study.charts),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(study.name)} · regard</title><style>{CSS}</style></head><body><main>"
        f"{''.join(parts)}<footer>Made by regard {escape(__version__)}.</footer></main></body></html>\n"
    )


def write(study: Study, folder: Path) -> Path:
    """Write ``NAME.html`` and ``NAME.json`` into the folder; where the page is."""
    told = {"name": study.name, "question": study.question, "answer": study.answer, "setting": study.setting}
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{study.name}.json", json.dumps({**told, **study.numbers}, indent=1).encode())
        replace_file(folder / f"{study.name}.html", page(study).encode())
    return folder / f"{study.name}.html"


def _figure(chart: Chart) -> str:
    if chart.named:
        wide, narrow = (dots(chart.named, chart.axes.y, chart.title, width, chart.line) for width in (WIDE, NARROW))
        drawn = f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'
    else:
        drawn = drawing(chart.series, chart.axes, 330, chart.title)
    behind = table(chart.columns, chart.rows) if chart.rows else ""
    return drawn + (legend(chart.series) if drawn and chart.series else "") + behind
