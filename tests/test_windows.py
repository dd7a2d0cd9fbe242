"""Commands without the names that only Unix has: they are removed in a process, and a run is made and read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Runs before regard is imported. `msvcrt` is Windows' own; its lock is replaced by one that records its calls.
WINDOWS = """
import os, signal, sys, types
for module in ("fcntl", "resource", "readline", "termios", "pwd", "grp"):
    sys.modules[module] = None
# libraries that the commands use decide by these names, not by the platform: load them first
import torch, numpy, tokenizers
for name in ("sysconf", "sysconf_names", "pread", "preadv", "O_NONBLOCK", "getuid", "getloadavg", "mkfifo", "statvfs"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "pthread_kill", "setitimer"):
    delattr(signal, name)
is_dir = os.path.isdir
os.path.isdir = lambda path: path != "/dev/fd" and is_dir(path)
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *call: locks.append(call))
locks = []
from regard.cli import main
"""
TINY = [
    *("--model.layers", "1", "--model.heads", "2", "--model.width", "16"),
    *("--model.context", "32", "--data.batch", "4"),
]
TINY += ["--train.steps", "3"]


def on_windows(code: str, room: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as on Windows."""
    variables = {**os.environ, "REGARD_CACHE": str(room / "cache"), **environment}
    command = [sys.executable, "-c", WINDOWS + code]
    return subprocess.run(command, cwd=room, env=variables, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 40, encoding="utf-8")
    return tmp_path


def test_train_generate_look_and_the_page_need_no_unix_names(room: Path) -> None:
    code = f"""
from pathlib import Path
assert main(["train", "shakespeare", "--name", "one", "--data.path", "text.txt", *{TINY!r}]) == 0
assert locks
assert main(["generate", "one", "--prompt", "to", "--tokens", "4"]) == 0
from regard.look.capture import observe
observe.LONG = 4
assert main(["look", "one", "--text", "to be or not to be"]) == 0
from regard.serve.run_library import is_training
assert is_training(Path("runs/one"))  # its metrics are recent: without file locks, that is what is known
from regard.train.guard import capacity
from regard.train.device import memory
cpu = torch.device("cpu")
capacity(cpu)
assert memory(cpu) == 0
print("done")
"""
    done = on_windows(code, room)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_character_that_the_terminal_cannot_show_is_no_error(room: Path, encoding: str) -> None:
    """Windows' pipes use an encoding of the country, in which Python refuses to print other characters."""
    code = "import regard.cli as cli; cli.dispatch = lambda _: print('\\u0416 is printed') or 0; cli.entry()"
    done = on_windows(code, room, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (0, "? is printed\n"), done.stderr
