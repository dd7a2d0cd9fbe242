"""One rank of test_communication: counts the bytes of one update in each layout, and writes them.

python counted_rank.py FOLDER
"""

import json
from pathlib import Path

from collectives import CASES, REAL, counted
from torch import distributed

from forked_ranks import fork_ranks


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
    found = {name: counted(*case, rank) for name, case in (CASES | REAL).items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    fork_ranks(main)
