"""The commands: one module each, holding a function of the same name. What needs torch is imported inside."""

from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from typing import get_type_hints

from regard.config.table import Table

#: In the order of `regard --help`; each is a function in the module of this package with its name.
COMMANDS = (
    "train",
    "resume",
    "generate",
    "chat",
    "embed",
    "predict",
    "translate",
    "transcribe",
    "evaluate",
    "report",
    "approximate",
    "compare",
    "study",
    "scale",
    "tune",
)
COMMANDS += (
    "score",
    "import",
    "export",
    "compress",
    "look",
    "serve",
    "prove",
    "doctor",
    "mask",
    "info",
    "describe",
    "plan",
    "recipes",
    "learn",
    "data",
    "models",
    "completion",
)


def find(name: str) -> Callable[..., int]:
    """A command's function. Its first parameter, `options`, is a dataclass that declares the command's options."""
    name += "_" if iskeyword(name) else ""
    return getattr(import_module(f"regard.commands.{name}"), name)


def options_of(name: str) -> Table:
    """The options of a command."""
    return Table(get_type_hints(find(name))["options"])
