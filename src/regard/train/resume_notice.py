"""What a person should know when a run is taken up: checkpoints passed over, or nothing left to do."""

import sys
from typing import TextIO

from regard.train.observer import Observer, TrainingStart


class ResumeNotice(Observer):
    """Says so in plain lines, before the first step."""

    def __init__(self, out: TextIO | None = None):
        self.out = out if out is not None else sys.stderr

    def started(self, start: TrainingStart) -> None:
        """Look at where the run stands."""
        for damage in start.run.damaged:
            print(f"{damage}; going on from step {start.step}", file=self.out)
        if start.step >= (start.experiment.train.steps or 0):
            print(f"{start.run.path} is finished: all {start.step:,} steps are done", file=self.out, flush=True)
