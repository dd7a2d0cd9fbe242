"""Programs that download: npm and apt."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Unavailable

LONGEST = 600.0  # seconds that a program may take in total


def run_program(command: Sequence[str], folder: Path, progress: ProgressLine) -> tuple[int, str]:
    """Run a program in a folder, with a progress line while it runs: its exit code and error output."""
    end = time.monotonic() + LONGEST
    null = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, cwd=folder, stdin=null, stdout=null, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise Unavailable(f"{Path(command[0]).name} cannot be run ({error.strerror or error})") from error
    with process, progress:
        while True:
            try:
                _, stderr = process.communicate(timeout=0.5)
                return process.returncode, stderr
            except subprocess.TimeoutExpired:
                progress.advance()
                if time.monotonic() > end:
                    process.kill()
