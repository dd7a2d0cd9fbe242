"""A schedule: cosine decay with warm restarts (SGDR, Loshchilov and Hutter 2017, eq. 5).

regard train --with schedule.py --train.schedule restarts --train.schedule.cycles 3
"""

import math
from dataclasses import dataclass

from regard.config import option
from regard.train import ScheduleConfig


@dataclass(frozen=True)
class RestartsConfig(ScheduleConfig, kind="restarts"):
    """Cycles of equal length, each from 1 down to `final`."""

    cycles: int = option(3, "number of cycles")
    final: float = option(0.1, "factor at the end of a cycle")

    def check(self) -> None:
        if self.cycles < 1:
            raise ValueError(f"cycles must be at least 1, not {self.cycles}")

    def factor(self, step: int, steps: int) -> float:
        progress = step * self.cycles / steps % 1
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
