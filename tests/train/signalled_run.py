"""A child process for test_signals: trains, and sends itself a signal in the middle of a step.

python signalled_run.py RUN SIGNAL STEP [TIMES]     from the start
python signalled_run.py RUN                         resumes
"""

import os
import signal
import sys
from pathlib import Path

from regard.config import load
from regard.runs import Run
from regard.train import Experiment, LiveLine, Observer, train


class Hand(Observer):
    """Presses Ctrl-C."""

    def __init__(self, number: int, step: int, times: int):
        self.number, self.step, self.times = number, step, times

    def stepped(self, step):
        if step.step == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


def main() -> int:
    run = Run.open(Path(sys.argv[1]))
    experiment = load(Experiment, run.config)
    if len(sys.argv) == 2:
        result = train(experiment, run, [LiveLine()], resume=True)
    else:
        name, step, *times = sys.argv[2:]
        hand = Hand(signal.Signals[name], int(step), int(times[0]) if times else 1)
        result = train(experiment, run, [hand, LiveLine()])
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
