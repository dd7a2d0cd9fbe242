"""The ranks of test_ring_laws.py: ``python ring_ranks.py SIZE FOLDER``. Each computes its part of every case."""

from __future__ import annotations

from pathlib import Path

import torch
from ring_kit import on_rank
from strategies import Case
from torch import Tensor, distributed

from forked_ranks import fork_ranks
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


if __name__ == "__main__":
    fork_ranks(main)
