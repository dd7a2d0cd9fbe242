"""Every example in a docstring of these packages runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ["regard.attention", "regard.nn", "regard.models"]


def modules() -> list[str]:
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [name, *(inner.name for inner in pkgutil.walk_packages(package.__path__, f"{name}."))]
    return [name for name in found if not name.endswith("_kernel")]  # they need triton


@pytest.mark.parametrize("name", modules())
def test_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [test for name in modules() for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) >= 5


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_described(name: str) -> None:
    package = importlib.import_module(name)
    public = {key: value for key, value in vars(package).items() if not key.startswith("_") and callable(value)}
    assert len(public) > 5
    assert [key for key, value in public.items() if not value.__doc__] == []
