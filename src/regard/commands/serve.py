"""`regard serve`."""

import getpass
import json
import os
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from regard.commands.common import RUNS, CommandOptions, no_run
from regard.config import option
from regard.errors import UserError


@dataclass(frozen=True)
class ServeOptions(CommandOptions):
    """Options of `regard serve`."""

    runs: Path = option(RUNS, "the folder that holds runs, or the folder of one run")
    port: int | None = option(None, "the port on 127.0.0.1; default: 8765 or the next free one; 0 takes any free one")
    device: str = option("auto", "where models run: auto, cpu, cuda, mps")
    browser: bool = option(True, "only print the address")


def serve(options: ServeOptions) -> int:
    """Serve a web page of your runs on this machine: live loss curves, and a view into every model."""
    runs = options.runs
    if options.port is not None and not 0 <= options.port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, not {options.port}")
    if not runs.is_dir():
        raise no_run(runs)
    try:
        import starlette  # noqa: F401 (installed?)
        import uvicorn  # noqa: F401 (installed?)
    except ImportError as error:
        raise UserError(f"`regard serve` needs {error.name}; install it: pip install 'regard[serve]'") from error
    print(f"starting the page of the runs in {runs} ...", file=sys.stderr, flush=True)  # importing torch takes seconds
    from regard.models.device import find_device
    from regard.serve.server import PORT, run

    def ready(address: str) -> None:
        port = urlsplit(address).port or 0
        lines = [address, f"runs in {runs}; only this machine can open it, and Ctrl-C ends it"]
        if options.port is None and port != PORT:
            lines.insert(0, f"port {PORT} is taken, so this is port {port}; `--port` chooses another")
        lines += [tunnel] if (tunnel := tunnel_hint(port)) else []
        print(json.dumps({"address": address, "runs": str(runs)}) if options.json else "\n".join(lines), flush=True)
        if options.browser and not tunnel:  # in a thread, since opening may block
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run(runs, find_device(options.device), options.port, ready)
    # Exit at once: neither wait for a forward pass in a worker thread nor for torch's teardown, which takes seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def tunnel_hint(port: int) -> str | None:
    """How to open the page from the machine that is connected by SSH; None without such a connection."""
    match os.environ.get("SSH_CONNECTION", "").split():
        case [_, _, host, ssh_port]:
            at = "" if ssh_port == "22" else f" -p {ssh_port}"
            tunnel = f"ssh -N -L {port}:127.0.0.1:{port}{at} {getpass.getuser()}@{host}"
            return f"you are connected by SSH: run `{tunnel}` on your own machine, then open the address there"
    return None
