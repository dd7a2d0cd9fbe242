"""The animated demo of the README: what its recorder understands of a terminal; the picture is small and safe."""

from __future__ import annotations

import importlib.util
import os
import re
from xml.etree import ElementTree

import pytest

from docs_kit import ROOT

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the recorder needs a pseudo-terminal")
PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "docs" / "demo.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("step 1\r\x1b[2Kstep 2", ["step 2"]),
        ("x" * 100 + "\r\n" + "y" * 101, ["x" * 100, "y" * 100, "y"]),
        ("step 100\r\x1b[Kend\r\n", ["end", ""]),
        ("a\r\nb\x1b[1A\r\x1b[2Kc\r\nd", ["c", "d"]),
        ("\x1b[?25lloss \x1b[1;36m3.2\x1b[0m nats", ["loss 3.2 nats"]),
    ],
)
def test_the_screen_shows_what_a_terminal_shows(demo, output, lines):
    screen = demo.Screen()
    screen.write(output)
    assert ["".join(character for character, _ in line) for line in screen.shown()] == lines


def test_every_line_is_shown_for_its_time(demo):
    events = [demo.Event(0.0, "wait"), demo.Event(50.0, "\r\x1b[Kdone <1>\r\n")]
    moments = list(demo.frames([demo.Session("go", events)]))
    first, second = [
        (begin, end, "".join(character for character, _ in cells))
        for row, begin, end, cells in demo.spans(moments)
        if row == 1
    ]
    assert (first[2], second[2]) == ("wait", "done <1>")
    assert first[1] - first[0] == pytest.approx(50 / demo.SPEED)
    assert (first[1], second[1]) == (second[0], moments[-1].at)
    tree = ElementTree.fromstring(demo.draw([demo.Session("go", events)]))
    shown = {"".join(text.itertext()): text.get("class") for text in tree.iter(f"{SVG}text")}
    assert (shown["done <1>"], shown["wait"]) == (None, "o")  # without animation, only the end is visible


def test_the_picture_is_of_the_readme_small_and_needs_nothing_else(demo):
    text = PICTURE.read_text("utf-8")
    tree = ElementTree.fromstring(text)
    shown = ["".join(line.itertext()) for line in tree.iter(f"{SVG}text")]
    assert all(f"$ {command}" in shown for command in demo.commands())
    assert len(text) < 150_000
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
        "svg",
        "style",
        "rect",
        "path",
        "text",
        "tspan",
    }
    assert not re.search(r"url\(|@import|href|<script", text)
    assert "pictures/demo.svg" in (ROOT / "README.md").read_text("utf-8")
