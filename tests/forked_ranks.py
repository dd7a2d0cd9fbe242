"""The ranks of a process group in tests, forked from one process, so that torch is imported once.

A test calls ``run_ranks(PROGRAM, size, folder, ...)``. The program has a function ``main(rank, size, folder, ...)`` and
ends with ``fork_ranks(main)``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

HERE = str(Path(__file__).parent)  # programs import this file, from their folders below


def run_ranks(program: str | Path, size: int, folder: Path, *arguments: str, options: Sequence[str] = ()) -> None:
    """Run the ranks to their end; ``options`` of Python."""
    done = subprocess.run(
        [sys.executable, *options, str(program), str(size), str(folder), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def fork_ranks(main: Callable[..., None]) -> NoReturn:
    """Fork the ranks that the command line asks for. If one fails, the others are killed, as they may wait for it."""
    torch.set_num_threads(1)
    size, folder, arguments = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    children = set()
    for rank in range(size):
        if (child := os.fork()) == 0:
            code = 1
            try:
                main(rank, size, folder, *arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:  # DTensor's caches keep the process group past its destruction (pytorch/pytorch#190489)
                sys.stderr.flush()
                os._exit(code)
        children.add(child)
    failed = False
    while children:
        child, status = os.wait()
        children.discard(child)
        if status and not failed:
            failed = True
            for other in children:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)
