"""One rank of test_communication: counts the bytes of one update in each layout, and writes them.

python counted_rank.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from collectives import CASES, RANKS, REAL, counted
from torch import distributed

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS)
    found = {name: counted(*case, rank) for name, case in (CASES | REAL).items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    os._exit(0)  # DTensor's caches keep the group past its destruction, which aborts some exits (pytorch#190489)
