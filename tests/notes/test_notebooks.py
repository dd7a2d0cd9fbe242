"""The notebooks: valid, stored without outputs, and run from top to bottom at a small scale."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs_kit import ROOT
from docs_run import VERSES

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SLOW = {"long_sequences": "`regard compare` trains each contender in a process of its own"}


def cells(name: str) -> list[dict]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))["cells"]


def shown(name: str) -> set[str]:
    sources = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "markdown"]
    return {picture for source in sources for picture in re.findall(r"\(pictures/([^)]+)\)", source)}


def test_the_lab_and_the_projects_are_there() -> None:
    assert NOTEBOOKS == ["efficient_variant", "lab", "long_sequences", "new_domain", "patterns"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid_and_has_no_outputs(name: str) -> None:
    """The required keys of nbformat 4.5."""
    book = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        required = {"cell_type", "id", "metadata", "source"}
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            required |= {"outputs", "execution_count"}
        assert set(cell) == required
    assert "".join(book["cells"][0]["source"]).startswith("# ")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in NOTEBOOKS]
)
def test_a_notebook_runs_and_draws_the_pictures_that_it_shows(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(VERSES, "utf-8")
    environment = {"NOTEBOOK_SCALE": "0.01", "NOTEBOOK_TEXT": str(tmp_path / "text.txt"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(ROOT / "docs" / "run_notebooks.py"), name, "--out", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == shown(name)


def test_every_committed_picture_is_shown() -> None:
    assert {file.name for file in (FOLDER / "pictures").iterdir()} == {one for name in NOTEBOOKS for one in shown(name)}
