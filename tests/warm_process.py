"""`regard` in a process of its own, forked from one that has imported torch: each start saves two seconds.

What the process has is its own: folder, environment, standard streams, exit code. For tests of imports, limits and
signals, start Python itself.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn
from unittest import mock

Regard = Callable[..., subprocess.CompletedProcess[str]]  # ``regard`` in a folder that is given
REGARD = "from regard.cli import entry; entry()"
#: Every optimizer imports torch._dynamo.
IMPORTED = ["safetensors.torch", "torch._dynamo"]
IMPORTED += [f"regard.{name}" for name in ("approximate", "doctor", "generate", "prove", "recipes", "report")]
PATIENCE = 600  # seconds after which a process is taken to hang
SAMPLE, SENTENCES = 20, 1  # tokens of a sample that a training writes, or its translations


def regard(
    folder: Path, *arguments: str, input: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `regard ARGUMENTS` in ``folder``."""
    return python(REGARD, folder, *arguments, input=input, environment=environment)


def cache_inside(folder: Path) -> dict[str, str]:
    """An environment with one thread, and a cache in ``folder``."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(folder / "cache"), "PYTHONUTF8": "1"}


def python(
    code: str,
    folder: Path,
    *arguments: str,
    input: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -c CODE ARGUMENTS` in ``folder``. The default environment is ``cache_inside`` the folder."""
    variables = dict(cache_inside(folder) if environment is None else environment)
    if not hasattr(os, "fork"):
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=folder, env=variables, input=input, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as streams:
        names = [str(Path(streams, name)) for name in ("in", "out", "err")]
        Path(names[0]).write_text(input or "")
        request = {"code": code, "arguments": arguments, "folder": str(folder), "streams": names}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({**request, "environment": variables}) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, err = (Path(name).read_text() for name in names[1:])
    return subprocess.CompletedProcess([code, *arguments], status, out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that forks; it ends when its standard input is closed, with this process."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Fork a process for each request and reply with its exit code."""
    for name in IMPORTED:
        import_module(name)
    from regard.report import probes

    probes.SAMPLE, probes.SENTENCES = SAMPLE, SENTENCES
    probe_formats()
    gc.freeze()  # a collection in a forked process would copy every page
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for pytest
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def probe_formats() -> None:
    """Fill the cache of ``probe``: each trial is a fork, where `regard prove` would start Python twice."""
    if not hasattr(os, "fork"):
        return

    def trial(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if (child := os.fork()) == 0:
            try:
                exec(command[-1], {})
            except BaseException:
                os._exit(1)
            os._exit(0)
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "", "")

    precision = import_module("regard.train.precision")
    with mock.patch.object(precision.subprocess, "run", trial):
        for name in ("bfloat16", "float16"):
            precision.probe(name)


def _become(code: str, arguments: list[str], folder: str, streams: list[str], environment: dict[str, str]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(PATIENCE)
    for number, name in enumerate(streams):
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    if environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):  # it may bring another CPU
        import_module("regard.train.precision").probe.cache_clear()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a normal exit would take most of a second to free the modules


if __name__ == "__main__":
    _serve()
