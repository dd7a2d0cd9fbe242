"""`regard` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: `regard`, also where Ctrl-C was turned off for whatever started the tests.
REGARD = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from regard.cli import entry; entry()",
]


def call(folder: Path, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REGARD, *words], cwd=folder, env=environment(folder), input=input, capture_output=True, text=True, timeout=120
    )


def environment(folder: Path) -> dict[str, str]:
    """One thread, and a cache of its own."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(folder / "cache"), "PYTHONUTF8": "1"}
