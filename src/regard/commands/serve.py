"""`regard serve`."""

import json
import os
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import RUNS, CommandOptions
from regard.config import option
from regard.errors import UserError


@dataclass(frozen=True)
class ServeOptions(CommandOptions):
    """Options of `regard serve`."""

    runs: Path = option(RUNS, "the folder that holds runs, or the folder of one run")
    port: int = option(0, "the port on 127.0.0.1; 0 takes a free one")
    device: str = option("auto", "where models run: auto, cpu, cuda, mps")
    browser: bool = option(True, "only print the address")


def serve(options: ServeOptions) -> int:
    """Serve a web page of your runs on this machine: live loss curves, and a view into every model."""
    runs = options.runs
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, not {options.port}")
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
        text = f"{address}\nruns in {runs}; only this machine can open it, and Ctrl-C ends it"
        print(json.dumps({"address": address, "runs": str(runs)}) if options.json else text, flush=True)
        if options.browser:  # in a thread, since opening may block
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run(runs, find_device(options.device), options.port, ready)
    # Exit at once: neither wait for a forward pass in a worker thread nor for torch's teardown, which takes seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
