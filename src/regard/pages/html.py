"""Self-contained HTML pages: one inline script for hover and zoom, nothing fetched, every text escaped."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from regard import __version__
from regard.pages.charts import Axes, Series, dot_plot, dot_plot_height, line_chart
from regard.pages.svg import FOLDER, picture, rectangle, stylesheet, tag, text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
WIDE, NARROW = 1000, 330  # pixels; the page shows the chart that fits the window
PICTURE = 900, 300  # width and height of one chart in a picture
ROWS = 24  # of a table of points


@dataclass(frozen=True)
class ChartSection:
    """A section with a line chart (``series``) or a dot plot (``named``), and its numbers in a table."""

    title: str
    about: str
    series: Sequence[Series]
    axes: Axes
    height: int = 330
    legend: Sequence[Series] | None = None  # default: the series
    named: Sequence[tuple[str, float]] = ()  # a dot plot in this order
    line: float | None = None  # a value to compare the named ones with
    columns: Sequence[str] = ()  # of the table; default: one per series
    rows: Sequence[Sequence[str]] = ()


def document(title: str, style: str, body: str, policy: str = POLICY, head: str = "") -> str:
    """A whole page; ``body`` and ``head`` are markup."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{head}'
        f"<title>{escape(title)} · regard</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def page(title: str, parts: Iterable[str], source: str = "") -> str:
    """A report or study. ``source`` is named in the footer."""
    made_from = f" from {escape(source)}" if source else ""
    footer = f"<footer>Made by regard {escape(__version__)}{made_from}.</footer>"
    script = (FOLDER / "chart.js").read_text(encoding="utf-8")
    body = f"<main>{''.join(parts)}{footer}</main><script>{script}</script>"
    return document(title, stylesheet("theme", "page"), body, f"{POLICY}; script-src '{sha256(script)}'")


def sha256(text: str) -> str:
    """The hash by which a Content-Security-Policy allows a script or a style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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


def chart_section(chart: ChartSection, numbers: bool = True) -> str:
    """The section of a chart with its legend and, by default, its numbers; an empty string if there is no data.

    A table without a chart is shown unfolded.
    """
    if chart.named:
        drawn = _responsive(*(dot_plot(chart.named, chart.axes.y, chart.title, w, chart.line) for w in (WIDE, NARROW)))
    else:
        drawn = figure(chart.series, chart.axes, chart.height, chart.title)
    if not drawn:
        return section(chart.title, chart.about, table(chart.columns, chart.rows, left=1)) if chart.rows else ""
    keys = chart.series if chart.legend is None else chart.legend
    drawn += legend(keys) if keys else ""
    if numbers:
        points = {series.name: series.points for series in chart.series}
        points |= {f"± {s.name}": [(x, (high - low) / 2) for x, low, high in s.band] for s in chart.series if s.band}
        drawn += numbers_table(chart.columns, chart.rows) if chart.rows else point_table(chart.axes.x, points)
    return section(chart.title, chart.about, drawn)


def point_table(x: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The points of curves in a folded table with at most about ``ROWS`` evenly spaced rows; sparse curves are kept."""
    columns = [dict(points) for points in curves.values()]
    places = sorted({place for column in columns for place in column})
    rare = {place for column in columns if len(column) < len(places) / 2 for place in column}
    every = max(1, -(-len(places) // ROWS))
    kept = [place for i, place in enumerate(places) if i % every == 0 or place in rare or place == places[-1]]
    thinned = kept[:: max(1, len(kept) // ROWS)] if len(kept) > 2 * ROWS else kept
    rows = [(f"{place:,g}", *(f"{c[place]:.4g}" if place in c else "" for c in columns)) for place in thinned]
    return numbers_table((x, *curves), rows)


def numbers_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A folded table."""
    return folded("The numbers", table(columns, rows))


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
    """Line charts and dot plots below one another as one SVG file; sections without either are left out."""
    (width, usual), parts, top = PICTURE, [], 0
    for chart in (one for one in charts if one.series or one.named):
        if chart.named:
            height = dot_plot_height(len(chart.named))
            drawn = dot_plot(chart.named, chart.axes.y, chart.title, width, chart.line)
        else:
            height, drawn = usual, line_chart(chart.series, chart.axes, width, usual, chart.title)
        parts.append(text(chart.title, 14, top + 22, "title"))
        parts.append(drawn.replace("<svg ", f'<svg y="{top + 30}" width="{width}" height="{height}" ', 1))
        x = 14
        for series in chart.series:
            parts.append(rectangle(f"key {series.css_class}", 12, 4, x=x, y=top + height + 38))
            parts.append(text(series.name, x + 17, top + height + 44, "soft"))
            x += 34 + 7 * len(series.name)
        top += height + 60
    return picture(title, description, width, top, parts)


def _responsive(wide: str, narrow: str) -> str:
    return f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>' if wide else ""
