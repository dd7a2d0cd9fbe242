"""One rank of test_shard or test_saving: trains as the launcher's environment says, one run after another.

python ranked_run.py RUN... [--resume]
"""

import sys
from pathlib import Path

import torch
import train_kit  # noqa: F401 - registers its data

from regard.config import load
from regard.runs import Run
from regard.train import Experiment, train

if __name__ == "__main__":
    torch.set_num_threads(1)
    for path in sys.argv[1:]:
        if path != "--resume":
            run = Run.open(Path(path))
            train(load(Experiment, run.config), run, resume="--resume" in sys.argv)
