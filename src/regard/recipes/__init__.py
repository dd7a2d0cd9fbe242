"""Recipes: named experiments. Each file here with a function ``recipe`` is one; its docstring says what to expect."""

from __future__ import annotations

import ast
import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.train import Experiment


def names() -> list[str]:
    """Every recipe, by file name."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[!_]*.py"))


def about(name: str) -> str:
    """A recipe's docstring."""
    return docstring(_file(name), "recipe") or ""


def docstring(path: Path, function: str) -> str | None:
    """What a function in a file says of itself, read without importing it (and so without importing torch).

    None: the file has no such function.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return next((ast.get_docstring(node) or "" for node in found), None)


def get(name: str) -> Experiment:
    """The experiment that a recipe describes."""
    return import_module(f"regard.recipes.{_file(name).stem}").recipe()


def _file(name: str) -> Path:
    if name not in names():
        if Path(name).exists():
            raise UserError(f"{name} is no recipe; to train on it: regard train shakespeare --data.path {name}")
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names())}"
        raise UserError(f"there is no recipe {name!r}, nor a TOML file of that name; {hint}")
    return Path(__file__).parent / f"{name.replace('-', '_')}.py"
