"""`regard serve`."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from pathlib import Path

from regard.commands.common import RUNS
from regard.errors import UserError


def serve(
    *, runs: Path = RUNS, port: int = 0, device: str = "auto", no_browser: bool = False, json: bool = False
) -> int:
    """The page of your runs, on this machine: curves as they grow, and every model looked into.

    Args:
        runs: The folder that holds runs, or the folder of one run.
        port: The port on 127.0.0.1; 0 takes a free one.
        device: Where models run: auto, cpu, cuda, mps.
        no_browser: Only print the address.
        json: Print the address as JSON.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, not {port}")
    if not runs.is_dir():
        raise UserError(
            f"there is no folder {runs}; train a run first (regard train), or give another with --runs FOLDER"
        )
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"`regard serve` needs {error.name}; install it: pip install 'regard[serve]'") from error
    from regard.generate.load import find_device
    from regard.serve.server import run

    def ready(address: str) -> None:
        told = {"address": address, "runs": str(runs)}
        said = f"{address}\nruns in {runs}; only this machine can open it, and Ctrl-C ends it"
        print(jsonlib.dumps(told) if json else said, flush=True)
        if not no_browser:
            import threading
            import webbrowser

            # In a thread, since it may wait for the browser.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run(runs, find_device(device), port, ready)
    # Nothing is left to be written, and Ctrl-C should not wait: neither for a pass through a model that is under way in
    # a thread, nor for torch to be taken apart, which takes up to seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
