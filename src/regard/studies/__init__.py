"""Studies: small experiments that answer one question each. Each file here with a function ``study`` is one."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from regard.config import hint
from regard.errors import UserError
from regard.recipes import docstring

if TYPE_CHECKING:
    from regard.studies.page import Study


def names() -> list[str]:
    """The names of all studies, by file name."""
    files = Path(__file__).parent.glob("[!_]*.py")
    return sorted(path.stem for path in files if docstring(path, "study") is not None)


def about(name: str) -> str:
    """The docstring of a study."""
    return docstring(Path(__file__).parent / f"{name}.py", "study") or ""


def get(name: str) -> "Callable[..., Study]":
    """The function ``study(scale, seed, say)`` of that name."""
    if name not in names():
        raise UserError(f"there is no study {name!r}; {hint(name, names())}")
    return import_module(f"regard.studies.{name}").study
