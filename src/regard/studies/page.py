"""A study as an HTML page, a picture of its charts and a JSON file: question, answer in words, charts, numbers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.config.notation import PlainTable
from regard.pages import html
from regard.pages.charts import Series
from regard.pages.html import ChartSection, chart_section
from regard.runs.disk import replace_files


@dataclass(frozen=True)
class Study:
    """The result of a study. The answer follows from the numbers."""

    answer: list[str]
    charts: list[ChartSection]
    numbers: PlainTable  # everything that was measured, for the JSON file
    setting: str  # sizes, data, seed, machine


def lines(curves: Mapping[str, Iterable[tuple[float, float]]], marks: bool = True) -> list[Series]:
    """Curves as the lines of a chart."""
    return [Series(name, list(points), color, marks) for color, (name, points) in enumerate(curves.items())]


def machine(device: torch.device | None = None) -> str:
    """The name of the GPU, or the number of CPU threads and the version of torch."""
    if device is not None and device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU with {threads} thread{'s' * (threads != 1)}, torch {torch.__version__.split('+')[0]}"


def page(name: str, question: str, study: Study) -> str:
    """The whole document."""
    parts = [
        html.heading(question, f"study {name} · {study.setting}"),
        html.paragraphs(study.answer),
        *(chart_section(chart) for chart in study.charts),
    ]
    return html.page(name, parts)


def write(name: str, question: str, study: Study, folder: Path) -> Path:
    """Write ``NAME.html``, ``.svg`` (the charts) and ``.json`` into the folder; return the path of the page."""
    summary = {"name": name, "question": question, "answer": study.answer, "setting": study.setting}
    numbers = json.dumps({**summary, **study.numbers}, indent=1)
    picture = html.chart_picture(study.charts, question, " ".join(study.answer))
    files = {"json": numbers, "svg": picture, "html": page(name, question, study)}
    replace_files(folder, {f"{name}.{ending}": content for ending, content in files.items()})
    return folder / f"{name}.html"
