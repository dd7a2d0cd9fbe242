"""Pictures in notebooks: saved as files and shown below the cell."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection, chart_picture


class Picture(str):
    """SVG text that Jupyter draws where it is the value of a cell."""

    def _repr_svg_(self) -> str:
        return str(self)


def show(name: str, svg: str) -> Picture:
    """Write ``pictures/NAME.svg``, and show it."""
    path = Path("pictures") / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svg, encoding="utf-8", newline="\n")
    return Picture(svg)


def show_lines(name: str, title: str, curves: Mapping[str, Iterable[tuple[float, float]]], axes: Axes) -> Picture:
    """A line for each name; up to 30 points of a line are marked."""
    drawn = [(key, list(points)) for key, points in curves.items()]
    series = [Series(key, points, color, len(points) <= 30) for color, (key, points) in enumerate(drawn)]
    return show(name, chart_picture([ChartSection(title, "", series, axes)], title, f"{axes.y} by {axes.x}"))


def show_dots(name: str, title: str, values: Iterable[tuple[str, float]], label: str, line: float) -> Picture:
    """A dot for each name; ``line`` is a value to compare with."""
    section = ChartSection(title, "", [], Axes("", label), named=list(values), line=line)
    return show(name, chart_picture([section], title, label))
