"""The command line: finds the command, parses its options, and turns an error into one line and an exit code."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import errno
import inspect
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from regard import __version__
from regard.commands import COMMANDS, find, options_of
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.table import Table

USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 2, 1, 130
#: The load average, as a share of the cores, from which on the machine is taken to be busy.
BUSY = 0.5


def main(argv: list[str] | None = None) -> int:
    """Run ``regard COMMAND ...`` and return its exit code.

    A UserError is one line and exit code 2, an internal error one line and 1, Ctrl-C 130; --debug adds the traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        code = dispatch([argument for argument in arguments if argument != "--debug"])
        if sys.stdout is not None:  # None: it was closed before the start
            sys.stdout.flush()  # here, where an error can still be reported
        return code
    except UserError as problem:
        error, message, code = problem, str(problem), problem.exit_code
    except BrokenPipeError:  # the reader of our output has exited: `regard generate | head`
        _discard_output()
        return 0
    except KeyboardInterrupt as stop:
        error, message, code = stop, "stopped", INTERRUPTED
    except Exception as fault:
        error, (message, code) = fault, _unexpected(fault)
    if debug:
        import traceback

        traceback.print_exception(error)
    from regard.untrusted import printable  # a message may quote a file

    print(f"regard: {printable(message)}", file=sys.stderr)
    return code


def dispatch(arguments: list[str]) -> int:
    """Parse the arguments and run the command."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"regard {__version__}")
        return 0
    from regard.config import hint
    from regard.config.command_line import Arguments, flag_name, options_of_table, parse, read_options
    from regard.config.parts import load_declared

    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        raise UserError(f"there is no command {command!r}; {hint(command, COMMANDS)}")
    function, title = find(command), f"regard {command}"
    table = options_of(command)
    takes_keys = "keys" in inspect.signature(function).parameters
    if {"-h", "--help"} & set(rest):
        found = Arguments([], {}, {})
        with contextlib.suppress(UserError):  # help is shown whatever else is given
            found = parse([word for word in rest if word not in ("-h", "--help")], table)
        load_declared(found.options.get("with_", ()))
        print(_help(table, title, function))
        return 0
    flags = [f"--{flag_name(name)}" for name in options_of_table(table)]
    found = parse(rest, table, lambda flag: _unknown(command, flag, flags, takes_keys))
    if found.keys and not takes_keys:
        raise UserError(
            f"`{title}` takes no --{next(iter(found.keys))}; only `regard train` and `regard describe` take keys of "
            "an experiment"
        )
    options = read_options(table, found, title)
    load_declared(options.with_)
    return function(options, found.keys) if takes_keys else function(options)


def _unknown(command: str, written: str, flags: list[str], takes_keys: bool) -> UserError | None:
    """The error for an option that a command does not have; None for a table of the experiment: `--model gpt`."""
    from regard.config import nearest

    near = nearest(written, flags, cutoff=0.8)  # `--nam` is `--name`, but `--steps` is closer to `--train.steps`
    if near is None and takes_keys:
        from regard.commands.train import TABLES, key_like

        if written[2:] in TABLES:
            return None
        near = key_like(written[2:])
    if near := near or nearest(written, flags):
        return UserError(f"`regard {command}` has no option {written}; did you mean {near}?")
    return UserError(f"`regard {command}` has no option {written}; `regard {command} --help` lists them")


def _unexpected(fault: Exception) -> tuple[str, int]:
    """The message and the exit code for an exception that no command handles."""
    # Files are written where errors are handled; only standard output has no name.
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG) and fault.filename is None:
        _discard_output()
        return f"standard output cannot be written ({fault.strerror}); make room, or send it elsewhere", USER_ERROR
    what = f"{type(fault).__name__}: {fault}".strip().splitlines()[0]
    from regard.config.parts import loaded_files

    where = " or in ".join(["regard", *loaded_files()])
    return f"this is a fault in {where}: {what}; run with --debug for the traceback", INTERNAL_ERROR


def _discard_output() -> None:
    """Redirect standard output to the null device, so that flushing its buffer at exit raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    lines = ["regard: sequence models on one attention operator", "", "usage: regard COMMAND [options]", ""]
    lines += [f"  {name:12} {(find(name).__doc__ or '').splitlines()[0]}" for name in COMMANDS]
    more = "regard COMMAND --help lists its options. --json prints results for programs, --debug an error's traceback."
    return "\n".join([*lines, "", more])


def _help(table: Table, title: str, function: Callable[..., int]) -> str:
    from regard.config.command_line import help_text
    from regard.config.parts import listing

    lines = [help_text(table, title, inspect.getdoc(function) or "")]
    for file, parts in listing().items():
        lines += ["", f"parts from {file}:", *(f"  {part}" for part in parts)]
    return "\n".join(lines)


def repeat_dropped_interrupt(dropped: sys.UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt again that Python has dropped, as a ``sys.unraisablehook``.

    Python drops every exception inside a destructor or a weakref callback, and each import ends with such a callback
    (it releases the module's lock). So a Ctrl-C while torch's compiler is imported would sometimes be lost.
    """
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()  # when the destructor or callback has returned
    else:
        sys.__unraisablehook__(dropped)


def share_busy_cores() -> None:
    """On a machine whose cores are busy, let threads of PyTorch that wait for each other sleep instead of spin.

    GNU's OpenMP reads the variable when torch is loaded. A thread that spins uses up the time slice that the other one
    is waiting for: with 2 threads on 2 cores that other processes load, a training step is ten times as long. On idle
    cores spinning is faster, by up to a tenth, so there it is left alone.
    """
    busy = hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
    if busy and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def leave(code: int) -> NoReturn:
    """End the process without freeing every object of torch, which takes seconds on a busy machine."""
    if "torch" not in sys.modules:
        sys.exit(code)
    with contextlib.suppress(Exception):  # a stream may be closed
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def entry() -> None:
    """The console script."""
    sys.unraisablehook = repeat_dropped_interrupt
    share_busy_cores()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":  # a pipe on Windows
        sys.stdout.reconfigure(errors="replace")
    leave(main())


if __name__ == "__main__":
    entry()
