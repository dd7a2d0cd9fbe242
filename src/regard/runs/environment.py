"""The environment of a run, to explain differences between runs."""

import os
import platform
import subprocess

from regard import __version__
from regard.runs.disk import JsonObject


def environment() -> JsonObject:
    """Versions, machine, threads, device, and the git commit of the working folder, if any."""
    import torch

    return {
        "regard": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cpu": _processor(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": _device(),
        "git": _git_commit(),
    }


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if torch.backends.mps.is_available():
        return f"{_processor()} (MPS)"
    return _processor()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def _git_commit() -> str | None:
    """The commit, with "-dirty" when tracked files differ from it; None outside a repository."""
    commit = _git("rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changes else commit


def _git(*arguments: str) -> str | None:
    # No optional locks, no file-system monitor: git then neither writes to the repository nor starts programs.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
