"""The notes: every page runs and draws what is committed; every row of the index names code and tests that exist."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs_kit import ROOT, blocks, prose
from regard import studies
from regard.commands import COMMANDS

sys.path.insert(0, str(ROOT / "docs"))
import notes_index  # pyright: ignore[reportMissingImports]
from notes_index import Row  # pyright: ignore[reportMissingImports]

PICTURES = ROOT / "docs" / "pictures" / "notes"
PAGES = notes_index.existing()
ROWS = [row for page in PAGES for row in notes_index.rows(page)]
SPAN = r"`[^`]+`(, `[^`]+`)*"


def path(page: str) -> Path:
    return ROOT / "docs" / "notes" / f"{page}.md"


def shown(page: str) -> set[str]:
    return set(re.findall(r"\(\.\./pictures/notes/([^)]+)\)", "\n".join(prose(path(page)))))


@pytest.mark.skipif(os.name == "nt", reason="the blocks are for a POSIX shell")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_and_draws_the_pictures_that_it_shows(page: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "notes" / "run.py"), "--folder", str(tmp_path), str(path(page))]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert {file.name for file in (tmp_path / page).glob("*.svg")} == shown(page)


def test_every_committed_picture_is_shown() -> None:
    assert {file.name for file in PICTURES.iterdir()} == {name for page in PAGES for name in shown(page)}


def test_every_page_is_in_the_index() -> None:
    assert {file.stem for file in (ROOT / "docs" / "notes").glob("*.md")} == {*PAGES, "index"}
    assert path("index").read_text("utf-8") == notes_index.index(), "run python docs/notes_index.py"


def section(row: Row) -> tuple[int, int]:
    """The lines of the row's section, with its subsections."""
    lines = prose(path(row.page))
    levels = {number: len(line) - len(line.lstrip("#")) for number, line in enumerate(lines) if line.startswith("#")}
    for number, level in levels.items():
        title = re.sub(r"[^\w\- ]", "", lines[number].lower()).strip().replace(" ", "-")
        if title == row.anchor:
            return number, next((n for n in levels if n > number and levels[n] <= level), len(lines))
    raise AssertionError(f"{row.page}.md has no section {row.anchor}")


def exists(span: str) -> bool:
    """A name that imports, a file of the repository, or a command."""
    if span.startswith("regard "):
        command, *words = span.split()[1:]
        return command in COMMANDS and (command != "study" or words[0] in studies.names())
    if "/" in span:
        return (ROOT / span).exists()
    module, names = span, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
            if not module:
                return False
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.page}-{row.item[:40]}" for row in ROWS])
def test_a_row_names_a_section_code_and_a_test(row: Row) -> None:
    assert len(row) == len([cell for cell in row if cell]), f"an empty cell: {row}"
    assert re.fullmatch(r"00[0-4]( 00[0-4])*", row.notes), row
    first, last = section(row)
    assert re.fullmatch(SPAN, row.code), f"{row.code}: code spans, with commas"
    for span in re.findall(r"`([^`]+)`", row.code):
        assert exists(span), f"{row.page}.md: there is no {span}"
    if row.test == "asserted here":
        here = [block for block in blocks(path(row.page)) if first < block.line <= last and block.language == "python"]
        assert any(re.search(r"^\s*assert ", block.code, re.MULTILINE) for block in here), f"{row}: nothing is asserted"
        return
    assert re.fullmatch(SPAN, row.test), f"{row.test}: tests, or `asserted here` without quotes"
    for test in re.findall(r"`([^`]+)`", row.test):
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{row.page}.md: {test}"


@pytest.mark.skipif("REGARD_NOTES" not in os.environ, reason="REGARD_NOTES names the folder of the notes")
def test_every_heading_of_the_notes_is_in_the_index() -> None:
    assert notes_index.missing(Path(os.environ["REGARD_NOTES"])) == []
