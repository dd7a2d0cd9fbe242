"""HTML and SVG building blocks, shared by the reports, the studies, `approximate` and the pictures of `look`."""

from regard.pages.charts import Axes, Series, dot_plot, line_chart, thin
from regard.pages.html import (
    ChartSection,
    chart_picture,
    chart_section,
    figure,
    heading,
    key_values,
    legend,
    page,
    paragraphs,
    section,
    table,
)
from regard.pages.svg import picture, tag

__all__ = [
    "Axes",
    "ChartSection",
    "Series",
    "chart_picture",
    "chart_section",
    "dot_plot",
    "figure",
    "heading",
    "key_values",
    "legend",
    "line_chart",
    "page",
    "paragraphs",
    "picture",
    "section",
    "table",
    "tag",
    "thin",
]
