"""The command line: finds the command's module, and turns a person's mistake into a sentence."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable

import tyro

from regard import __version__
from regard.errors import UserError

#: In the order of `regard --help`; each is a function in the module of `regard.commands` with its name.
COMMANDS = ("train", "resume", "generate", "info", "recipes")


def find(name: str) -> Callable[..., int]:
    """A command's function."""
    return getattr(importlib.import_module(f"regard.commands.{name}"), name)


def main(argv: list[str] | None = None) -> int:
    """``regard COMMAND ...``. A person's mistake is one sentence and exit code 2; --debug shows the traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"regard {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    try:
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}; choose from {', '.join(COMMANDS)}")
        plain, overrides = split_overrides(rest)
        if overrides and command != "train":
            raise UserError(
                f"`regard {command}` takes no {overrides[0]}; only `regard train` sets keys of an experiment"
            )
        chosen = {"overrides": tuple(overrides)} if command == "train" else {}
        return tyro.cli(functools.partial(find(command), **chosen), args=plain, prog=f"regard {command}")
    except UserError as problem:
        if debug:
            raise
        print(f"regard: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output went away: `regard generate | head`
        sys.stderr.close()
        return 0


def split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What belongs to the command, and what sets keys of the experiment: options with a dot in their name."""
    plain, overrides, i = [], [], 0
    while i < len(arguments):
        here = arguments[i]
        if here.startswith("--") and "." in here.split("=", 1)[0]:
            takes = "=" not in here and i + 1 < len(arguments) and not arguments[i + 1].startswith("--")
            overrides += arguments[i : i + 1 + takes]
            i += 1 + takes
        else:
            plain.append(here)
            i += 1
    return plain, overrides


def _overview() -> str:
    lines = ["regard: sequence models on one attention operator", "", "usage: regard COMMAND [options]", ""]
    lines += [f"  {name:10} {(find(name).__doc__ or '').splitlines()[0]}" for name in COMMANDS]
    return "\n".join([*lines, "", "regard COMMAND --help says more. --json where a program reads the result."])


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
