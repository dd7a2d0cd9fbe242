"""The pages: links hold, tables and lists begin after an empty line, as the Markdown of the site needs it."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import regard
from docs_kit import PAGES, ROOT, name_of, prose


def anchors(page: Path) -> set[str]:
    titles = [line.lstrip("# ") for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_hold(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(page))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"
        if ROOT / "docs" in page.parents:
            assert ROOT / "docs" in file.resolve().parents, f"{page.name}: the site has no {target}"


@pytest.mark.parametrize("page", PAGES[2:], ids=name_of)
def test_tables_and_lists_begin_after_an_empty_line(page: Path) -> None:
    lines = ["", *prose(page)]
    starts = ("|", "- ", "1. ")
    for before, line in pairwise(lines):
        if line.startswith(starts) and before.strip():
            assert before.startswith((*starts, "  ")) or re.match(r"\d+\. ", before), f"{page.name}: {line[:60]}"


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in config


def test_every_public_name_is_in_the_reference() -> None:
    listed = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    found = set(re.findall(r"^::: regard\.[\w.]*\.(\w+)$", listed, re.M))
    assert found - {"fit"} | {"train"} == set(regard.__all__)  # regard.train is fit


def test_all_extras_of_commands_are_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert {"data", "serve", "translate", "pictures", "tensorboard"} <= set(re.split(r"[\[\],]", everything))


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text("utf-8")
    install = text[text.index("## Install") : text.index("## The two commands")]
    assert {extra for extra in extras if f"`{extra}`" not in install} == {"all", "docs", "dev", "bench"}


def test_the_opening_says_what_for_whom_and_why() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    opening = text[: text.index("## Commands")]
    for word in (
        "student",
        "researcher",
        "engineer",
        "nanoGPT",
        "x-transformers",
        "TransformerLens",
        "The notes",
        "page-cell",
    ):
        assert word in opening
