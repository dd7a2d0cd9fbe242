"""Self-contained HTML pages: no script, nothing fetched, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from regard import __version__
from regard.pages.charts import Axes, Series, dot_plot, line_chart
from regard.pages.svg import picture, rectangle, stylesheet, tag, text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
WIDE, NARROW = 1000, 330  # pixels; the page shows the chart that fits the window
PICTURE = 900, 300  # width and height of one chart in a picture


@dataclass(frozen=True)
class ChartSection:
    """A section with one chart: lines (``series``) or named values (``named``), and the numbers behind it."""

    title: str
    about: str
    series: list[Series]
    axes: Axes
    columns: tuple[str, ...] = ()  # of the table of numbers
    rows: list[tuple[str, ...]] = field(default_factory=list)
    named: list[tuple[str, float]] = field(default_factory=list)  # a dot plot in this order
    line: float | None = None  # a value to compare the named ones with


def page(title: str, parts: Iterable[str], source: str = "") -> str:
    """The whole document. ``source`` is named in the footer."""
    made_from = f" from {escape(source)}" if source else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} · regard</title><style>{stylesheet('theme', 'page')}</style></head><body><main>"
        f"{''.join(parts)}<footer>Made by regard {escape(__version__)}{made_from}.</footer></main></body></html>\n"
    )


def heading(title: str, subtitle: str) -> str:
    """The page's title."""
    return f'<header><h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p></header>'


def paragraphs(sentences: Iterable[str], more: str = "") -> str:
    """The summary on top of a page; ``more`` is markup."""
    return f'<div class="lead">{"".join(f"<p>{escape(text)}</p>" for text in sentences)}{more}</div>'


def section(title: str, about: str, content: str) -> str:
    """A section with a title; an empty string if it has no content."""
    if not content:
        return ""
    words = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def chart_section(chart: ChartSection) -> str:
    """The section of a chart, with its legend and its numbers."""
    if chart.named:
        drawn = _responsive(*(dot_plot(chart.named, chart.axes.y, chart.title, w, chart.line) for w in (WIDE, NARROW)))
    else:
        drawn = figure(chart.series, chart.axes, 330, chart.title)
    keys = legend(chart.series) if drawn and chart.series else ""
    numbers = folded("The numbers", table(chart.columns, chart.rows)) if chart.rows else ""
    return section(chart.title, chart.about, drawn + keys + numbers)


def figure(series: Sequence[Series], axes: Axes, height: int, title: str) -> str:
    """A line chart at two widths, so that its letters stay readable on a phone."""
    return _responsive(
        line_chart(series, axes, WIDE, height, title), line_chart(series, axes, NARROW, min(height, 240), title)
    )


def legend(series: Sequence[Series]) -> str:
    """The color of each series."""
    items = (f'<li><i class="{s.css_class}{" faint" if s.faint else ""}"></i>{escape(s.name)}</li>' for s in series)
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 0) -> str:
    """A table of numbers; the first ``left`` columns are text, aligned to the left."""

    def line(kind: str, cells: Sequence[str], scope: str | None = None) -> str:
        sides = (None if i < left else "n" for i in range(len(cells)))
        return tag(
            "tr", "".join(tag(kind, escape(c), scope=scope, class_=s) for c, s in zip(cells, sides, strict=True))
        )

    body = "".join(line("td", row) for row in rows)
    head = line("th", columns, "col")
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def key_values(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    body = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in rows)
    return f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'


def folded(title: str, content: str) -> str:
    """Content behind a title that opens it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def chart_picture(charts: Sequence[ChartSection], title: str, description: str) -> str:
    """Line charts below one another as one SVG file."""
    (width, height), parts = PICTURE, []
    for number, chart in enumerate(charts):
        top = number * (height + 60)
        drawn = line_chart(chart.series, chart.axes, width, height, chart.title)
        parts.append(text(chart.title, 14, top + 22, "title"))
        parts.append(drawn.replace("<svg ", f'<svg y="{top + 30}" width="{width}" height="{height}" ', 1))
        x = 14
        for series in chart.series:
            parts.append(rectangle(f"key {series.css_class}", 12, 4, x=x, y=top + height + 38))
            parts.append(text(series.name, x + 17, top + height + 44, "soft"))
            x += 34 + 7 * len(series.name)
    return picture(title, description, width, len(charts) * (height + 60), parts)


def _responsive(wide: str, narrow: str) -> str:
    return f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>' if wide else ""
