"""One rank of test_group: agrees on a name, joins the process group, and stops itself if it is the last one.

python meeting_rank.py TIMEOUT
"""

import os
import signal
import sys

import torch

from regard.errors import RankLost
from regard.parallel.group import agree, process_group
from regard.parallel.world import from_environment

if __name__ == "__main__":
    world = from_environment()
    print(agree(world, 300.0, lambda: f"chosen by rank {world.rank}"), flush=True)
    try:
        with process_group(world, torch.device("cpu"), float(sys.argv[1])) as group:
            print(group.sums([1.0 + world.rank]), flush=True)
            if world.rank == world.size - 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            group.barrier()
    except RankLost as lost:
        sys.exit(f"regard: {lost}")
