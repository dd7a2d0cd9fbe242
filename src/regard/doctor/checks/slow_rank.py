"""One of several ranks is slower than the others, which wait for it in every step."""

import statistics
from collections import deque
from collections.abc import Sequence

from regard.doctor import Check, Findings, Resources
from regard.doctor.context import Record, TrainingRun
from regard.train import TrainingStep

SLOWER = 1.3  # times the others' median: less than that changes with what else the machines do
STEADY = 0.8  # the share of the steps in which it is the same rank
STEPS, RECORDS = 16, 5  # that are evidence at least
LATEST = 60  # steps that are judged


class SlowRank(Check):
    kind, description = "slow_rank", "all ranks wait for one of them"
    needs_confirmation = True

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=LATEST)  # slowest rank, its seconds, the others'

    def on_step(self, step: TrainingStep) -> Findings:
        if seconds := step.rank_seconds:
            rank = seconds.index(max(seconds))
            self._steps.append((rank, seconds[rank], statistics.median(seconds[:rank] + seconds[rank + 1 :])))
        return ()

    def on_resources(self, resources: Resources) -> Findings:
        yield from self._judge(self._steps, STEPS, "steps")

    def on_records(self, records: Sequence[Record]) -> Findings:
        own = [
            (record["slowest_rank"], record["step_seconds_slowest"], record["step_seconds_others"])
            for record in records
            if "slowest_rank" in record
        ]
        yield from self._judge(own, RECORDS, "records")

    def _judge(self, seen: Sequence[tuple[int, float, float]], least: int, unit: str) -> Findings:
        if len(seen) < least:
            return
        rank = statistics.mode(each[0] for each in seen)
        slow = [each for each in seen if each[0] == rank]
        longest, usual = (statistics.median(each[number] for each in slow) for number in (1, 2))
        if len(slow) < STEADY * len(seen) or longest < SLOWER * usual:
            return
        evidence = (
            f"it works {longest * 1e3:.3g} ms in a step, the median of the others {usual * 1e3:.3g} ms, and it is the "
        )
        evidence += f"slowest in {len(slow)} of {len(seen)} {unit}"
        cause = "its GPU is throttled or shared, other processes use its cores, or its data are read more slowly"
        change = "look at that machine (nvidia-smi, top); if it stays slow, leave it out and resume on the others"
        yield self.finding(f"rank {rank}", evidence, cause, change)
