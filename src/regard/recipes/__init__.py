"""Recipes: named experiments. Each file here with a function ``recipe`` is one, and so is each such file from outside
the package; its docstring gives the command and the expected result."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from regard.config import nearest, override
from regard.config.parts import NameTaken, catalog, defining, outside, place_of
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.train import Experiment

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every recipe, by file name."""
    return sorted([*_built_in(), *_outside()])


def about(name: str) -> str:
    """A recipe's docstring."""
    if name in _outside():
        return inspect.getdoc(_outside()[name].recipe) or ""
    return docstring(_file(name), "recipe") or ""


def place(name: str) -> str:
    """A note such as (my_recipe.py) for a recipe from outside the package, else an empty text."""
    return outside(_outside()[name]) if name in _outside() else ""


def docstring(path: Path, function: str) -> str | None:
    """The docstring of a function in a file, read without importing it (and so without importing torch).

    None: the file has no such function.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return next((ast.get_docstring(node) or "" for node in found), None)


def get(name: str) -> Experiment:
    """The experiment that a recipe describes."""
    if name in _outside():
        return _outside()[name].recipe()
    return import_module(f"regard.recipes.{_file(name).stem}").recipe()


def recipe(name: str, *arguments: str) -> Experiment:
    """The experiment that a recipe describes, changed by arguments as on the command line: ``"--model.width=32"``."""
    return override(get(name), arguments)


def _built_in() -> list[str]:
    return [path.stem.replace("_", "-") for path in FOLDER.glob("[!_]*.py")]


def _outside() -> dict[str, ModuleType]:
    found = {stem.replace("_", "-"): module for stem, module in defining("recipe").items()}
    for name in set(found) & set(_built_in()):
        raise NameTaken(f"there is a recipe {name!r} already (regard.recipes); rename {place_of(found[name])}")
    return found


def _file(name: str) -> Path:
    if name not in names():
        if Path(name).exists():
            raise UserError(f"{name} is no recipe; to train on it: regard train shakespeare --data.path {name}")
        near = nearest(name, names())
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(one + place(one) for one in names())}"
        raise UserError(f"there is no recipe {name!r}, nor a TOML file of that name; {hint}")
    return FOLDER / f"{name.replace('-', '_')}.py"


catalog("recipe", _outside)
