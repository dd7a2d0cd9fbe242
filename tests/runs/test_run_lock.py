"""Two processes cannot train one run, and a dead one does not hold it."""

import signal
import subprocess
import sys

import pytest

from regard.errors import UserError
from regard.runs import Run

HOLD = """
import sys, time
from pathlib import Path
from regard.runs import Run
with Run.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(600)
"""

# The holder forks an idle worker, as data loaders do, and then waits to be killed.
HOLD_WITH_WORKER = """
import os, sys, time
from pathlib import Path
from regard.runs import Run
with Run.open(Path(sys.argv[1])).lock():
    worker = os.fork()
    if worker == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
        os._exit(0)
    time.sleep(600)
"""


def start(code: str, run: Run) -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def test_a_second_process_is_refused_and_told_who_holds_it(run: Run):
    child, said = start(HOLD, run)
    try:
        assert said == "held"
        with (
            pytest.raises(UserError, match=f"run first is being trained by process {child.pid} on"),
            run.lock(),
        ):
            pass
        run.metrics()  # reading needs no lock
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    with run.lock():
        pass  # kill -9 releases it


def test_a_second_holder_in_the_same_process_is_refused(run: Run):
    with run.lock(), pytest.raises(UserError, match="being trained"), Run.open(run.path).lock():
        pass
    with run.lock():
        pass


def test_an_exception_releases_it(run: Run):
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock():
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_worker_does_not_hold_it_for_a_killed_trainer(run: Run):
    import os

    child, worker = start(HOLD_WITH_WORKER, run)
    try:
        child.send_signal(signal.SIGKILL)
        child.wait()
        os.kill(int(worker), 0)  # the worker still lives
        with run.lock():
            pass
    finally:
        os.kill(int(worker), signal.SIGKILL)
        child.communicate()


def test_taking_it_removes_what_a_killed_writer_left(run: Run):
    left = [run.path / "checkpoints" / ".tmp-step-000007-00ff", run.path / ".tmp-metrics.jsonl-00ff"]
    left[0].mkdir()
    (left[0] / "model.safetensors").write_bytes(b"part")
    left[1].write_bytes(b"part")
    Run.open(run.path).latest()
    assert all(path.exists() for path in left)  # a reader removes nothing: the writer may be alive
    with run.lock():
        assert not any(path.exists() for path in left)
