"""The ranks of test_ring_laws.py: ``python ring_ranks.py SIZE FOLDER``. Each computes its part of every case."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import torch
from ring_kit import on_rank
from strategies import Case
from torch import Tensor, distributed

from regard.parallel.context import positions
from regard.parallel.transport import GroupTransport

SMALLEST = 3  # tokens of a tile: cases are short


def parts(case: Case, size: int, zigzag: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The indices of each rank's queries and keys."""
    lengths = (case.queries.length, case.key_slots.length)
    queries, keys = ([positions(n, rank, size, zigzag=zigzag) for rank in range(size)] for n in lengths)
    return queries, keys


def main(rank: int, size: int, folder: Path) -> None:
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    group = distributed.group.WORLD
    assert group is not None
    found = []
    for case, zigzag in torch.load(folder / "cases", weights_only=False):
        transport = GroupTransport(group)
        queries, keys = parts(case, size, zigzag)
        result = on_rank(case, transport, queries[rank], keys[rank], smallest=SMALLEST)
        found.append((result, (transport.messages, transport.bytes)))
    torch.save(found, folder / f"results-{rank}")
    distributed.destroy_process_group()


def run_ranks(size: int, folder: Path) -> None:
    """Run the ranks in processes of their own, which one process forks after its imports."""
    done = subprocess.run(
        [sys.executable, __file__, str(size), str(folder)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


def fork_ranks(size: int, folder: Path) -> int:
    """The exit code of the first rank that failed, after all have ended."""
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            code = 1
            try:
                main(rank, size, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(fork_ranks(int(sys.argv[1]), Path(sys.argv[2])))
