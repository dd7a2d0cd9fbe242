"""`regard train` on two gloo ranks: by --processes, torchrun and srun's variables; killed, stopped and told to end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from bench.torture.kills import unfinished
from rank_kit import free_port

from launch_kit import STEPS, TRAIN, finish, names, ranks, same_end, saved, start, undisturbed, wait
from regard.errors import RankLost
from regard.runs import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc"),
]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and the run two-1, which nothing disturbed."""
    return undisturbed(tmp_path_factory.mktemp("ranks"))


def test_torchrun_agrees_on_a_name_and_trains_the_same_run(room):
    before = names(room)
    said, code = finish(start(room, *TORCHRUN, str(free_port()), *TRAIN))
    assert code == 0, said
    (name,) = set(names(room)) - set(before)
    same_end(room, name)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_restarted_and_the_run_ends_bit_identical(room, rank):
    name = f"killed-{rank}"
    process = start(room, *TRAIN, "--processes", "2", "--name", name)
    wait(lambda: saved(room, name), process)
    os.kill(ranks(process)[rank], signal.SIGKILL)
    said, code = finish(process)
    assert code == 0, said
    assert f"rank {rank} was ended by SIGKILL; restart 1 of 3" in said
    same_end(room, name)


@pytest.mark.parametrize(("rank", "later"), [(0, "false"), (1, "false"), (1, "true")])
def test_a_rank_killed_in_a_save_leaves_the_checkpoint_before(room, rank, later):
    name = f"in-save-{rank}-{later}"
    often = ("--train.save_every", "1", "--train.save_async", later)
    process = start(room, *TRAIN, "--processes", "2", "--name", name, *often)
    wait(lambda: saved(room, name) and unfinished(room / "runs" / name), process)
    os.kill(ranks(process)[rank], signal.SIGKILL)
    said, code = finish(process)
    assert code == 0, said
    assert f"rank {rank} was ended by SIGKILL; restart 1 of 3" in said
    assert "damaged" not in said
    same_end(room, name)
    assert not unfinished(room / "runs" / name)


def test_sigterm_saves_and_again_continues(room):
    command = (*TRAIN, "--processes", "2", "--name", "told", "--again")
    process = start(room, *command)
    wait(lambda: saved(room, "told"), process)
    process.terminate()
    said, code = finish(process)
    assert code == 130, said
    run = Run.open(room / "runs" / "told")
    assert max(run.steps()) == max(int(str(record["step"])) for record in run.metrics()) < STEPS  # nothing is lost
    said, code = finish(start(room, *command))
    assert code == 0, said
    same_end(room, "told")


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_ends_the_other_with_its_name(room, stopped):
    """The ranks of srun: no launcher watches them, and rank 0 serves the store."""
    name, port = f"stopped-{stopped}", str(free_port())
    shared = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    shared |= {"MASTER_PORT": port}
    # The first start may wait for the other's imports; 10 seconds are for the training.
    command = (*TRAIN, "--name", name, "--again", "--timeout", "10")
    both = [
        start(room, *command, environment={**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(2)
    ]
    wait(lambda: saved(room, name), both[0])
    os.kill(both[stopped].pid, signal.SIGSTOP)
    try:
        said, code = finish(both[1 - stopped])
    finally:
        both[stopped].kill()
        both[stopped].communicate()
    who = "rank 1" if stopped else "the store of the ranks, on the machine of rank 0,"
    assert said.splitlines()[-1].startswith(f"regard: {who} has not answered for 9 seconds"), said
    assert code == RankLost.exit_code
    said, code = finish(start(room, *TRAIN, "--processes", "2", "--name", name, "--again"))
    assert code == 0, said
    same_end(room, name)
