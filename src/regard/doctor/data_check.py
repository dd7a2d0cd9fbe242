"""Checks that judge the data of a run once, from examples of all parts."""

from abc import abstractmethod

from regard.doctor.check import Check, Findings
from regard.doctor.context import RecentBatches, TrainingRun
from regard.doctor.examples import Examples


class DataCheck(Check):
    """Judges the data before the first step of a session, or when a run folder is examined."""

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._judged = False

    @abstractmethod
    def judge(self, examples: Examples) -> Findings:
        """What is wrong with the data."""

    def on_start(self) -> Findings:
        if self._judged or self.run.data is None:
            return []
        self._judged = True
        try:
            return list(self.judge(self.run.examples))
        except Exception:  # data may have any form; what cannot be measured is not judged
            return []

    def on_batches(self, batches: RecentBatches) -> Findings:
        return self.on_start()
