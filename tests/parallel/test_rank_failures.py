"""Nothing is lost when a rank is killed, told to end, or meets another process; `regard train` on gloo ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launch_kit import STEPS, TRAIN, finish, names, ranks, same_end, saved, start, undisturbed, wait
from regard.errors import UserError
from regard.runs import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc"),
]
FAULT = ("--with", str(Path(__file__).with_name("fault.py")))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and the run two-1, which nothing disturbed."""
    return undisturbed(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("rank", "step"), [(0, 0), (1, 3)])
def test_a_rank_is_killed_before_the_first_checkpoint(room: Path, rank: int, step: int) -> None:
    """That of step 10. test_launched_ranks kills each rank between two checkpoints, and while one is written."""
    name = f"killed-{rank}-{step}"
    command = (*TRAIN, "--processes", "2", "--name", name, *FAULT)
    said, code = finish(start(room, *command, environment={"FAULT": f"{rank} {step}"}))
    assert code == 0, said
    assert f"rank {rank} was ended by SIGKILL; restart 1 of 3" in said
    assert (room / "faults" / f"{rank} {step}").exists()
    same_end(room, name)
    checkpoints = room / "runs" / name / "checkpoints"
    assert all(path.name.startswith("step-") for path in checkpoints.iterdir())  # nothing unfinished is left


def test_one_rank_that_is_told_to_end_takes_all_along(room: Path) -> None:
    command = (*TRAIN, "--processes", "2", "--name", "preempted", "--again")
    process = start(room, *command)
    wait(lambda: saved(room, "preempted"), process)
    os.kill(ranks(process)[1], signal.SIGTERM)
    said, code = finish(process)
    assert code == 130, said
    run = Run.open(room / "runs" / "preempted")
    assert max(run.steps()) == max(int(str(record["step"])) for record in run.metrics()) < STEPS
    said, code = finish(start(room, *command))
    assert code == 0, said
    same_end(room, "preempted")


def test_a_name_is_taken_by_one_run_only(room: Path) -> None:
    command = (*TRAIN, "--processes", "2", "--name", "mine")
    first = start(room, *command)
    wait(lambda: saved(room, "mine"), first)
    before, stopped = names(room), ranks(first)
    for rank in stopped:  # so that the run is not over before the others have started
        os.kill(rank, signal.SIGSTOP)
    try:
        for others in (command, (*command, "--again")):
            said, code = finish(start(room, *others))
            assert code == UserError.exit_code, said
            assert "mine" in said
    finally:
        for rank in stopped:
            os.kill(rank, signal.SIGCONT)
    assert names(room) == before
    said, code = finish(first)
    assert code == 0, said
    same_end(room, "mine")


def test_three_ranks_cannot_share_four_lanes(room: Path) -> None:
    before = names(room)
    said, code = finish(start(room, *TRAIN, "--processes", "3", "--name", "lanes", "--train.lanes", "4"))
    assert code == UserError.exit_code, said
    assert "let replicate x shard divide 4" in said
    assert names(room) == before
