"""Every mistake at the command line ends in one sentence that names the thing and the fix, and leaves no trace.

Each row of the table in bad_inputs/cases.py is a real process in a fresh folder: exit code 2, nothing on standard
output, no traceback, and every file as it was before.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm_process
from bad_inputs.cases import HEAVY, LIGHT, TRAIN, Case, changed
from bad_inputs.damage import RUN, truncate
from bad_inputs.limits import file_size, memory
from bad_inputs.room import TEXT, TINY, contents, environment, regard

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sets limits as POSIX systems have them")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux keeps a process to its limit")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A folder with a text in it."""
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with two checkpoints, made once for all worker processes."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bad_inputs"
    shared.mkdir(exist_ok=True)
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / RUN).exists():
            (shared / "text.txt").write_text(TEXT)
            done = regard(shared, f"train {TINY} --train.steps 4 --name one")
            assert done.returncode == 0, done.stderr
    return shared / RUN


@pytest.fixture
def with_run(room: Path, trained: Path) -> Path:
    """A folder with a text and a trained run in it."""
    shutil.copytree(trained, room / RUN)
    return room


def check(case: Case, room: Path, lines: int = 4) -> None:
    if case.change is not None:
        case.change(room)
    old = contents(room)
    done = regard(room, case.command, case.env, case.before)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    for words in case.says:
        assert words in done.stderr
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert said[-1].startswith("regard: ")
    assert len(said) <= lines, done.stderr
    assert contents(room) == old


@pytest.mark.parametrize("name", LIGHT)
def test_a_slip_is_answered_at_once(name: str, room: Path, request: pytest.FixtureRequest) -> None:
    if LIGHT[name].run:
        request.getfixturevalue("with_run")
    began = LIGHT[name]
    # Without torch: a module of that name that cannot be imported stands in its way.
    (room / "blocked").mkdir()
    (room / "blocked" / "torch.py").write_text("raise SystemExit('torch was imported')")
    check(began._replace(env={**(began.env or {}), "PYTHONPATH": "{room}/blocked"}), room, lines=1)


#: Rows with a near relation among the others; each costs the two seconds of importing torch.
SPARE = {
    "no layers",
    "unknown schedule",
    "unknown key of an optimizer",
    "no such device",
    "no log",
    "empty text",
    "too many layers",
    "model beyond counting",
    "resume: a bit flipped in all",
    "resume: no manifests",
    "resume: no text",
    "generate: no such run",
    "generate: no checkpoint whole",
    "report: metrics damaged",
}
ROWS = [
    pytest.param(
        name,
        marks=[pytest.mark.slow] if name in SPARE else [],
    )
    for name in HEAVY
]


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_one_sentence(name: str, room: Path, request: pytest.FixtureRequest) -> None:
    if HEAVY[name].run:
        request.getfixturevalue("with_run")
    check(HEAVY[name], room)


def test_a_damaged_checkpoint_is_named_and_passed_over(with_run: Path) -> None:
    truncate(with_run / RUN / "checkpoints" / "step-000004")
    done = regard(with_run, "resume one --json")
    assert done.returncode == 0
    assert "step-000004 is damaged: model.safetensors has" in done.stderr
    assert "taking step 2 instead" in done.stderr
    assert json.loads(done.stdout)["step"] == 4


def test_a_finished_run_is_no_mistake(with_run: Path) -> None:
    done = regard(with_run, "resume one --json")
    assert done.returncode == 0
    assert "finished: all 4 steps are done" in done.stderr
    assert json.loads(done.stdout)["step"] == 4


def test_a_full_disk_keeps_what_was_written_before(room: Path) -> None:
    """The checkpoint of step 2 does not fit; the metrics up to it do."""
    done = regard(room, TRAIN + "--name one", before=file_size(12_000))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("regard: cannot write the checkpoint of step 2 in runs/one")
    assert "Traceback" not in done.stderr
    names = [name for name in contents(room) if name.startswith(RUN)]
    assert f"{RUN}/metrics.jsonl" in names
    assert not [name for name in names if ".tmp-" in name or "step-" in name]
    assert regard(room, "resume one").returncode == 0


@linux
@pytest.mark.slow
def test_out_of_memory_names_a_setting_that_fits(room: Path) -> None:
    (room / "text.txt").write_text(TEXT * 40)
    large = changed("--data.batch", "1536", "--model.context", "256", "--train.steps", "1", "--train.device", "cpu")
    limit = memory()
    done = regard(room, large + " --train.accumulate 2", before=limit)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert not (room / "runs").exists()
    found = re.search(r"--data\.batch (\d+) --train\.accumulate (\d+)", done.stderr)
    assert found is not None, done.stderr
    batch, accumulate = map(int, found.groups())
    assert batch < 1536
    assert batch * accumulate == 1536 * 2
    smaller = changed("--data.batch", str(batch), "--model.context", "256", "--train.steps", "1")
    done = regard(room, smaller + " --train.device cpu", before=limit)
    assert done.returncode == 0, done.stderr


@linux
@pytest.mark.slow
def test_a_model_for_which_no_batch_is_small_enough_says_so(room: Path) -> None:
    """Its weights and gradients would fit into all the memory there is, but not beside the rest of the process."""
    done = regard(room, changed("--model.width", "2200") + " --train.device cpu", before=memory())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "memory ran out" in done.stderr
    assert "lower --model.width" in done.stderr
    assert not (room / "runs").exists()


@pytest.mark.parametrize("command", ["recipes", "recipes shakespeare"])
def test_a_reader_who_goes_away_is_no_mistake(command: str, room: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = regard(room, command, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@linux
def test_output_that_cannot_be_written_is_told(room: Path) -> None:
    with open("/dev/full", "w") as full:
        done = regard(room, "recipes", stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == (
        "regard: standard output cannot be written (No space left on device); make room, or send it elsewhere\n"
    )


def test_ctrl_c_before_the_first_step_leaves_nothing(room: Path) -> None:
    words = shlex.split(changed("--model.layers", "3000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "regard.cli", *words],
        cwd=room,
        env=environment(room),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "preparing" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "regard: stopped"
    assert "Traceback" not in err
    assert not (room / "runs").exists()


@pytest.mark.parametrize("place", ["destructor", "weakref callback"])
def test_one_ctrl_c_is_enough_where_python_drops_exceptions(room: Path, place: str) -> None:
    """An import ends with a weakref callback; a KeyboardInterrupt inside of it is ignored by Python."""
    press = "def press(*_):\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(9))\n"
    kinds = {
        "destructor": "Part.__del__ = press\nPart()",
        "weakref callback": "one = Part()\nref = weakref.ref(one, press)\ndel one",
    }
    lines = f"import os, signal, time, weakref\n{press}class Part: pass\n{kinds[place]}\n"
    (room / "parts.py").write_text(lines + "for _ in range(2000):\n    time.sleep(0.01)\n")
    done = regard(room, "recipes --with parts.py")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "regard: stopped\n")


def test_debug_shows_the_traceback_and_keeps_the_exit_code(room: Path) -> None:
    done = regard(room, "info nothing --debug")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("regard: there is no run runs/nothing")


def test_a_fault_of_ours_is_one_line_and_exit_code_1(with_run: Path) -> None:
    """Something nobody foresaw: the interpreter itself cannot read a module of ours."""
    (with_run / "broken").mkdir()
    (with_run / "broken" / "tomllib.py").write_text("raise RuntimeError('unforeseen')")
    done = regard(with_run, "info one", {"PYTHONPATH": "{room}/broken"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "regard: this is a fault in regard: RuntimeError: unforeseen; run with --debug for the traceback\n"
    )


def test_the_table_is_long_enough() -> None:
    assert len(LIGHT) + len(HEAVY) >= 45
    assert HEAVY.keys() >= SPARE


def test_observers_hear_of_an_error(room: Path) -> None:
    """A loss that is not finite: whoever drew a line on the terminal gets the chance to end it."""
    heard = """
import sys
from pathlib import Path
from regard.config import override, to_toml
from regard.recipes import get
from regard.runs import Run
from regard.train import Diverged, Observer, train

class Listener(Observer):
    def failed(self, error):
        print(type(error).__name__)

experiment = override(get("shakespeare"), [*sys.argv[1:], "--train.optimizer", "adamw", "--train.optimizer.lr", "1e30"])
try:
    train(experiment, Run.create(Path("runs"), "one", to_toml(experiment), {}), [Listener()])
except Diverged:
    print("raised")
"""
    words = shlex.split(changed("--train.steps", "9", "--train.save_every", "9"))[1:]
    done = warm_process.python(heard, room, *words)
    assert done.stdout.split() == ["Diverged", "raised"], done.stderr
