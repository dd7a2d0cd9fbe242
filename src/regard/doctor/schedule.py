"""When the doctor looks: a function of the config alone, so that findings depend on no clock and on no other process.

Work is counted in training steps of the run. The passes of the doctor have a limited number of tokens, so on larger
models and batches they take a smaller part of a step, and examinations come more often.
"""

import math
from enum import IntEnum

from regard.data import TextConfig
from regard.train import Experiment

#: The share of the training's work that examinations and replays of long runs may take. Short runs have three
#: examinations and two replays in any case.
SHARE = 0.01
#: Of an examination, with its share of deep ones and of replays: steps for what is independent of the size (two for
#: statistics and many small passes, a third of two for a replay), and tokens of all forward passes.
STEPS, TOKENS = 3.0, 4096
EVERY = 10  # steps between two examinations at least
#: Tokens that may be passed through the model, or read from the data, in any run; further ones in proportion to those
#: that the run has trained on. A forward pass is a third of the work of a step; reading is a hundredth at most.
FREE_PASSED, FREE_READ, PASSED = 4096, 2**17, 3 * SHARE


class Examination(IntEnum):
    """How much an examination does. Depths come in turn."""

    PASSES = 0  # records, gradients, batches, and the common side pass
    DEEP = 1  # also checks that need passes of their own; afterwards the next step is replayed
    RECORDS = 2  # no pass, unless there is something to confirm or to bring up to date


class Schedule:
    """The steps of one session at which the doctor examines, measures an update and replays a step."""

    def __init__(self, experiment: Experiment, first: int, lanes: int = 1):
        train, data = experiment.train, experiment.data
        self.last = train.steps or 0
        left = self.last - first
        rows = data.batch * train.accumulate * lanes
        tokens = (
            rows * experiment.model.context if isinstance(data, TextConfig) else rows
        )  # batches of pairs count tokens
        every = max(EVERY, math.ceil((STEPS + TOKENS / (3 * tokens)) / SHARE))
        count = max(3, left // every)
        due = [first + max(1, -(-left * number // count)) for number in range(1, count + 1)]
        self.examinations = {step: Examination(number % 3) for number, step in enumerate(due)}
        self.updates = {first + max(2, left // 10), *due}  # steps after which the next update is measured
        # Gradients that are not cleared show from the second step on, moments of the optimizer from the third.
        early = first + 2 if left > 2 else first
        self._replays = {early} | {step for step, depth in self.examinations.items() if depth is Examination.DEEP}

    def replays(self, step: int) -> bool:
        """Whether the step after ``step`` is replayed."""
        return step in self._replays and step < self.last


def sampled(step: int) -> bool:
    """Whether invariants are checked after this step that hold in all of them, but take longer than a few numbers."""
    return step % (10 if step <= 60 else 50) == 0 or step <= 2
