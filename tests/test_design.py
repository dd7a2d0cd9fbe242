"""docs/design.md: the layers are those that imports are checked against, and every name in the pictures exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regard"
PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
#: A line of a picture: a file, the functions or classes in it, and after two spaces what they do.
CALLS = re.findall(r"^    ([a-z_/0-9]+\.py) +([\w.]+(?:, [\w.]+)*)", PAGE[PAGE.index("## One batch") :], re.M)


def test_the_layers_are_those_of_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    layers = [name for layer in contract["layers"] for name in layer.split(" | ") if name != "__main__"]
    drawn = PAGE[PAGE.index("## Layers") : PAGE.index("## One batch")]
    assert [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"^    (\S+)", drawn, re.M)] == layers


def test_the_pictures_are_of_a_batch_a_token_and_a_request() -> None:
    files = [file for file, _ in CALLS]
    assert len(files) > 35
    assert {"train/engine.py", "generate/decoder.py", "serve/guard.py", "look/capture/strips.py"} <= set(files)


@pytest.mark.parametrize(("file", "names"), CALLS)
def test_a_name_in_a_picture_exists(file: str, names: str) -> None:
    source = (PACKAGE / file).read_text("utf-8")
    for name in names.split(", "):
        for part in name.split("."):
            assert re.search(rf"^ *(async )?(def|class) {part}\b", source, re.M), f"{file} has no {part}"


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 165
    assert len(PAGE) <= 13_000
