"""`regard` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Regard = Callable[..., subprocess.CompletedProcess[str]]


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(folder / "cache"), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "regard.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
