"""Charts and maps: ticks around the data, points inside the picture, well-formed SVG, images that read back."""

from __future__ import annotations

import base64
import doctest
import io
import re
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.pages import charts, notebook, numbers, svg
from regard.pages.charts import Axes, Series, dot_plot, line_chart, log_ticks, thin, ticks
from regard.pages.heat import RED, STRONGEST, image_picture
from regard.pages.html import ChartSection, chart_picture
from regard.pages.svg import png

FINITE = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(low=FINITE, span=st.floats(1e-9, 1e12), most=st.integers(2, 12))
def test_ticks_surround_the_data_and_are_few(low, span, most):
    high = low + max(span, abs(low) * 1e-6)
    marks = ticks(low, high, most)
    margin = (high - low) * 1e-6
    assert marks[0] <= low + margin
    assert marks[-1] >= high - margin
    assert 2 <= len(marks) <= 2 * most + 2
    assert marks == sorted(set(marks))


@given(low=st.floats(1e-50, 1e9), factor=st.floats(1, 1e6) | st.floats(1, 1e50))
def test_logarithmic_ticks_surround_the_data(low, factor):
    marks = log_ticks(low, low * factor)
    assert marks[0] <= low * 1.0000001
    assert marks[-1] >= low * factor * 0.9999999
    assert 2 <= len(marks) <= 12


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(1e-6, 1e6)), min_size=1, max_size=30), st.booleans())
def test_every_point_lies_inside_the_picture(points, log):
    drawn = line_chart([Series("<a>", sorted(points), marks=True)], Axes("x", "y", log=log), 400, 200, "<t>")
    ElementTree.fromstring(drawn)  # well-formed
    for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', drawn):
        assert 0 <= float(x) <= 400
        assert 0 <= float(y) <= 200


@given(st.integers(1, 3000), st.integers(3, 400))
def test_thinning_keeps_the_ends_and_the_size(count, most):
    points = [(float(i), float(i * i % 97)) for i in range(count)]
    found = thin(points, most)
    assert found[0] == points[0]
    assert found[-1] == points[-1]
    assert len(found) <= most + 1
    assert found == sorted(found)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_a_picture_reads_back(width, height, seed):
    wanted = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    found = matplotlib.image.imread(io.BytesIO(png([bytes(row) for row in wanted])), format="png")
    assert np.array_equal(np.rint(found * 255).astype(np.uint8), wanted)


def test_every_name_and_value_is_drawn_in_order() -> None:
    values = [("softmax", 1.52), ("window & sinks", 1.6), ("<linear>", 1.9)]
    root = ElementTree.fromstring(dot_plot(values, "loss", "Losses", 1000, line=1.52))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert [text for text in texts if text in dict(values)] == [name for name, _ in values]
    across = [float(e.attrib["cx"]) for e in root.iter() if e.tag.endswith("circle")]
    assert across == sorted(across)
    assert len(across) == 3
    described = next(e.text for e in root.iter() if e.tag.endswith("desc"))
    assert described is not None
    assert all(name in described for name, _ in values)


def test_nothing_gives_nothing() -> None:
    assert dot_plot([], "loss", "Losses", 1000) == ""


def test_a_picture_has_line_charts_and_dot_plots_below_one_another():
    lines = ChartSection("Lines", "", [Series("one", [(0, 1.0), (1, 2.0)])], Axes("step", "loss"))
    dots = ChartSection("Dots", "", [], Axes("", "effect"), named=[("a", 1.0), ("b", 2.0), ("c", 3.0)])
    root = ElementTree.fromstring(chart_picture([lines, dots, lines], "Title", "about"))
    inner = [(float(e.attrib["y"]), float(e.attrib["height"])) for e in root if e.tag.endswith("}svg")]
    assert len(inner) == 3
    ends = [y + height for y, height in inner]
    assert all(end < y for end, (y, _) in zip(ends, inner[1:], strict=False))
    assert ends[-1] < float(root.attrib["height"])
    assert {"a", "b", "c"} <= {e.text for e in root.iter() if e.tag.endswith("text")}


def test_a_picture_has_no_place_for_a_section_without_charts() -> None:
    axes = Axes("x", "y")
    lines = ChartSection("lines", "", [Series("a", [(0.0, 1.0), (1.0, 2.0)])], axes)
    table = ChartSection("table", "", [], axes)
    assert chart_picture([table, lines], "title", "about") == chart_picture([lines], "title", "about")


def test_the_examples_in_the_docstrings_are_true() -> None:
    for module in (charts, numbers, svg):
        assert doctest.testmod(module).failed == 0


def test_the_heat_of_an_image_is_where_its_weights_are():
    """The second panel is redder in the part with the largest weight, and like the image where there is none."""
    image = pytest.importorskip("PIL.Image")
    for colors in (1, 3):
        pixels = np.full((4, 8, colors), 100, np.uint8)
        drawn = image_picture(pixels, np.array([[0.0, 0.25, 0.5, 0.0], [0.0, 0.0, 0.0, 0.25]]))
        plain, heated = (
            np.asarray(image.open(io.BytesIO(base64.b64decode(data))), int)
            for data in re.findall(r'base64,([^"]+)"', drawn)
        )
        assert (plain == 100).all()
        assert plain.shape == heated.shape == (4, 8, 3)
        assert (heated[:2, 4:6] == np.trunc(100 + STRONGEST * (np.array(RED) - 100))).all()
        assert (heated[:, :2] == 100).all()
        assert 100 < heated[0, 2, 0] < heated[0, 4, 0]


def test_a_notebook_shows_the_picture_that_it_saves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = notebook.show_lines("a", "A line", {"one": [(0, 1), (1, 2)]}, Axes("x", "y"))
    dots = notebook.show_dots("b", "Dots", [("one", 1.0)], "loss", 0.0)
    for name, picture in (("a", lines), ("b", dots)):
        assert picture._repr_svg_() == (tmp_path / "pictures" / f"{name}.svg").read_text("utf-8")
        ElementTree.fromstring(picture)
