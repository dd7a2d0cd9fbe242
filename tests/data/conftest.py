"""A folder with the numbered text, and its config; modules with other data define their own."""

import pytest
from text_kit import TEXT

from regard.data import TextConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def config(folder):
    path = folder / "numbered.txt"
    path.write_text(TEXT, encoding="utf-8")
    return TextConfig(path=str(path))
