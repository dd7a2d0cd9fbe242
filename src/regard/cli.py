"""The command line: finds the command's module, and turns a person's mistake into a sentence."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable

from regard import __version__
from regard.errors import UserError

#: In the order of `regard --help`; each is a function in the module of `regard.commands` with its name.
COMMANDS = ("train", "resume", "generate", "translate", "evaluate", "report", "approximate", "study")
COMMANDS += ("look", "serve", "prove", "doctor", "mask", "info", "recipes", "data")

MISTAKE, FAULT, INTERRUPTED = 2, 1, 130


def find(name: str) -> Callable[..., int]:
    """A command's function."""
    return getattr(importlib.import_module(f"regard.commands.{name}"), name)


def main(argv: list[str] | None = None) -> int:
    """``regard COMMAND ...`` and its exit code.

    A person's mistake is one sentence and exit code 2, a fault of ours one line and 1, Ctrl-C 130; --debug shows the
    traceback of any of them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        code = dispatch([argument for argument in arguments if argument != "--debug"])
        if sys.stdout is not None:  # None: it was closed before we began
            sys.stdout.flush()  # while a refusal can still be told
        return code
    except UserError as problem:
        error, said, code = problem, str(problem), MISTAKE
    except BrokenPipeError:  # the reader of our output went away: `regard generate | head`
        _hush()
        return 0
    except KeyboardInterrupt as stop:
        error, said, code = stop, "stopped", INTERRUPTED
    except Exception as fault:
        error, (said, code) = fault, _unexpected(fault)
    if debug:
        import traceback

        traceback.print_exception(error)
    print(f"regard: {said}", file=sys.stderr)
    return code


def dispatch(arguments: list[str]) -> int:
    """Carry out a command."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"regard {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        from regard.config.place import nearest

        near = nearest(command, COMMANDS)
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(COMMANDS)}"
        raise UserError(f"there is no command {command!r}; {hint}")
    plain, overrides = split_overrides(rest)
    if overrides and command != "train":
        raise UserError(f"`regard {command}` takes no {overrides[0]}; only `regard train` sets keys of an experiment")
    from regard.commands import arguments as options

    function = find(command)
    chosen, elsewhere = {}, None
    if command == "train":
        from regard.commands.train import key_like

        chosen, elsewhere = {"overrides": tuple(overrides)}, key_like
    plain = options.check(command, function, plain, elsewhere)
    options.check_overrides(overrides)
    import tyro

    bound = functools.partial(function, **chosen)
    return tyro.cli(bound, args=plain, prog=f"regard {command}", config=(tyro.conf.FlagCreatePairsOff,))


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


def _unexpected(fault: Exception) -> tuple[str, int]:
    """The sentence and the exit code for what no command foresaw."""
    # Files have names and are written where a refusal is understood; standard output has none.
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG) and fault.filename is None:
        _hush()
        return f"standard output cannot be written ({fault.strerror}); make room, or send it elsewhere", MISTAKE
    what = f"{type(fault).__name__}: {fault}".strip().splitlines()[0]
    return f"this is a fault in regard: {what}; run with --debug for the traceback", FAULT


def _hush() -> None:
    """Nobody reads standard output any more: what is left in its buffer goes nowhere, without a complaint at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    lines = ["regard: sequence models on one attention operator", "", "usage: regard COMMAND [options]", ""]
    lines += [f"  {name:12} {(find(name).__doc__ or '').splitlines()[0]}" for name in COMMANDS]
    more = "regard COMMAND --help says more. --json where a program reads the result; --debug for an error's traceback."
    return "\n".join([*lines, "", more])


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
