"""`regard learn`: the notes as pages that need no network."""

import json
import re
import tomllib
import webbrowser
from html import unescape
from pathlib import Path

import pytest

from docs_kit import ROOT
from regard import cli
from regard.commands import learn
from regard.pages.markdown import markup


def test_all_pages_open_without_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["learn", "--no-browser", "--out", str(tmp_path), "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    sources = [*(ROOT / "docs" / "notes").glob("*.md"), *(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    assert set(pages) == {path.stem for path in sources}
    assert next(iter(pages)) == "index"
    html = {name: (tmp_path / f"{name}.html").read_text("utf-8") for name in pages}
    for name, text in html.items():
        assert all(source.startswith("data:") for source in re.findall(r'src="([^"]*)"', text)), name
        assert "default-src 'none'" in text
        assert re.findall(r'href="([^"]*)" aria-current="page"', text) == [f"{name}.html"]
        for target in map(unescape, re.findall(r'href="([^"]*)"', text)):
            file, _, anchor = target.partition("#")
            if not file.startswith("https://"):
                assert not file or (tmp_path / file).exists(), f"{name}: {target}"
                assert not anchor or f'id="{anchor}"' in html[Path(file).stem if file else name], f"{name}: {target}"
    for path in (ROOT / "docs" / "notebooks").rglob("*.*"):
        copied = tmp_path / path.relative_to(ROOT / "docs" / "notebooks")
        assert copied.read_bytes() == path.read_bytes()


def test_a_page_is_opened_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for given, name in (((), "index"), (("recurrent",), "recurrent"), (("--no-browser",), None)):
        opened.clear()
        assert cli.main(["learn", *given, "--out", str(tmp_path)]) == 0
        assert opened == ([] if name is None else [(tmp_path / f"{name}.html").as_uri()])


def test_an_unknown_page_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["learn", "recurent", "--no-browser"]) == 2
    assert "'recurent'; there are index, " in capsys.readouterr().err


def test_a_notebook_is_a_page(tmp_path: Path) -> None:
    cells = [("markdown", ["# Lab\n", "One *cell*."]), ("code", ["x = 1 < 2\n", "x"])]
    path = tmp_path / "lab.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": kind, "source": source} for kind, source in cells]}))
    assert learn.markdown_of(path) == "# Lab\nOne *cell*.\n\n```python\nx = 1 < 2\nx\n```"


def test_markup_is_escaped_and_links_are_found_or_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg/>")
    text = "## A `b`: c\n\n`x.y < z` <i>1</i>\n\n[one](one.md) [two](../two.md)\n\n![a](a.svg)\n\n```text\na < b\n```\n"
    found = markup(text, tmp_path, lambda target: "one.html" if target == "one.md" else None)
    assert '<h2 id="a-b-c">' in found
    assert "<code>x.<wbr>y &lt; z</code>" in found
    assert "&lt;i&gt;" in found
    assert "a &lt; b" in found
    assert '<a href="one.html">one</a> <a title="../two.md">two</a>' in found
    assert 'src="data:image/svg+xml;base64,PHN2Zy8+"' in found


def test_the_package_has_what_the_pages_need() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    for folder in ("docs/notes", "docs/notebooks", "docs/pictures/notes"):
        assert build["force-include"][folder] == f"regard/{folder}"
