"""A run survives kill -9 at any moment, and a disk that says no."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.runs import Run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
SAVERS = Path(__file__).with_name("killed_savers.py")


def kill_savers(run: Run, how: str, rounds: int = 0, seed: int = 0) -> dict[str, int]:
    command = [sys.executable, str(SAVERS), str(run.path), how, str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_at_random_moments(run: Run):
    counts = kill_savers(run, "random", rounds=30, seed=1)
    assert counts["saves"] >= 5, counts
    assert counts["during_a_save"] >= 5, counts  # else the test tested nothing


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_many_random_moments(run: Run, seed: int):
    counts = kill_savers(run, "random", rounds=300, seed=100 + seed)
    assert counts["during_a_save"] >= 50, counts


def test_killed_before_every_file_operation_of_a_save(run: Run):
    assert kill_savers(run, "every")["rounds"] > 30


# Fills a disk of 1 MB, or meets the limit on a file's size, while saving the second checkpoint.
REFUSED = """
import os, resource, sys
from pathlib import Path
import torch
from regard.errors import UserError
from regard.runs import Run

root, how = Path(sys.argv[1]), sys.argv[2]
run = Run.create(root / "runs", "x", "", {})
with run.lock():
    run.log({"step": 1})
    run.save(1, {"w": torch.ones(50_000)}, {"m": torch.ones(10)}, {})
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    big = {"w": torch.ones(400_000)}
    if how == "file-size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    for model, optimizer, state in [(big, {}, {}), ({}, big, {}), ({}, {}, {"text": "x" * 1_000_000})]:
        try:
            run.save(2, model, optimizer, state, keep=1)
        except UserError as error:
            assert "checkpoint of step 2" in str(error) and sys.argv[3] in str(error), error
        else:
            raise AssertionError("nothing was refused")
        assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["step-000001"]
        assert run.latest().model()["w"].sum() == 50_000
    # a record that does not fit is refused, and what was there stays readable and can be added to
    try:
        run.log({"step": 2, "text": "x" * 1_000_000})
    except UserError as error:
        assert "metrics.jsonl" in str(error) and sys.argv[3] in str(error)
    else:
        raise AssertionError("nothing was refused")
    assert run.metrics() == [{"step": 1}]
    run.log({"step": 2})
    assert run.metrics() == [{"step": 1}, {"step": 2}]
print("refused well")
"""


def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path):
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, to mount a tiny disk without being root")
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    if subprocess.run([*enter, mount], capture_output=True).returncode != 0:
        pytest.skip("this system lets no one mount a tiny disk")
    inside = f"{mount} && exec '{sys.executable}' -c \"$0\" '{tmp_path}' disk 'disk is full'"
    done = subprocess.run([*enter, inside, REFUSED], capture_output=True, text=True)
    assert done.stdout == "refused well\n", done.stderr


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_said_and_harms_nothing(tmp_path: Path):
    command = [sys.executable, "-c", REFUSED, str(tmp_path), "file-size", "ulimit -f"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "refused well\n", done.stderr


REWIND = """
import resource, sys
from pathlib import Path
from regard.errors import UserError
from regard.runs import Run

run = Run.create(Path(sys.argv[1]), "x", "", {})
for step in range(40):
    run.log({"step": step, "text": "x" * 10_000})
before = (run.path / "metrics.jsonl").read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    run.rewind(35)
except UserError as error:
    assert "metrics.jsonl" in str(error)
else:
    raise AssertionError("nothing was refused")
assert (run.path / "metrics.jsonl").read_bytes() == before
assert sorted(path.name for path in run.path.iterdir()) == [
    "MANIFEST.json", "checkpoints", "config.toml", "environment.json", "metrics.jsonl"
]
run.rewind(5)
assert len(run.metrics()) == 6
print("rewound well")
"""


def test_a_rewind_that_the_disk_refuses_changes_nothing(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", REWIND, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "rewound well\n", done.stderr


TRACED = """
import sys
from pathlib import Path
import torch
from regard.runs import Run
run = Run.open(Path(sys.argv[1]))
run.log({"step": 1})
run.save(1, {"w": torch.ones(3)}, {}, {})
"""


@pytest.mark.slow
def test_everything_is_synced_before_the_rename_and_the_parent_after_it(run: Run, tmp_path: Path):
    # A power failure cannot be tried here, but the order of the calls that guard against it can be seen.
    trace = tmp_path / "trace"
    calls = "trace=fsync,rename,renameat,renameat2"
    command = [
        "strace",
        "-f",
        "-y",
        "-e",
        calls,
        "-o",
        str(trace),
        sys.executable,
        "-c",
        TRACED,
        str(run.path),
    ]
    if not shutil.which("strace") or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs strace and the right to trace")
    lines = [line for line in trace.read_text().splitlines() if str(run.path) in line]
    where = {}
    for index, line in enumerate(lines):
        if "fsync(" in line:
            where[line.split("<")[1].split(">")[0].removeprefix(f"{run.path}/")] = index
        else:
            where["rename"] = index
    files = [name for name in where if "/.tmp-step-000001-" in name and name.count("/") == 2]
    names = {name.rpartition("/")[2]: where[name] for name in files}
    assert names.keys() == {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"}
    assert max(names.values()) == names["MANIFEST.json"] < where["rename"] < where["checkpoints"]
    folder = files[0].rpartition("/")[0]
    assert names["MANIFEST.json"] < where[folder] < where["rename"]
    assert where["metrics.jsonl"] < where["rename"]
